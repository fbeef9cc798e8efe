"""The compiled decoder's threads: each does parts of the tasks that it is for, and of no other."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import common.model.native

_COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
_TASKS, _PARTS = 3000 * 30 * 2, 8


@pytest.mark.skipif(_COMPILER is None, reason="no compiler here")
def test_a_thread_that_comes_late_leaves_tasks_that_are_not_its_own(tmp_path: Path) -> None:
    native = Path(common.model.native.__file__).parent
    sources = [Path(__file__).with_name("late_threads.c"), native / "workers.c"]
    program = tmp_path / "late_threads"
    command = [_COMPILER, "-O2", f"-I{native}", *sources, "-lpthread", "-o", program]
    subprocess.run(command, check=True)  # type: ignore[arg-type]
    done, others = subprocess.run([program], capture_output=True, check=True).stdout.split()
    assert int(done) == _TASKS * _PARTS
    assert int(others) == 0
