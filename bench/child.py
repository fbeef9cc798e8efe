"""Measurements that want torch: each in a process of its own, so that the bench's own never loads
it, and none disturbs another's threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from common.errors import StartupError
from launcher.process import OFFLINE, tethered


def ask(module: str, *arguments: str) -> Any:
    """Run a module that prints one line of JSON; return what it says.

    Raises:
        StartupError: It failed; its own words are on standard error.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment = {**os.environ, **OFFLINE}
    done = subprocess.run(tethered(command), stdout=subprocess.PIPE, env=environment, check=False)
    if done.returncode:
        raise StartupError(f"{module} failed on {' '.join(arguments)}")
    return json.loads(done.stdout)


def answer(found: Any) -> None:
    """Print the line, in the process asked; whatever else it prints goes to standard error."""
    print(json.dumps(found), file=sys.__stdout__, flush=True)
