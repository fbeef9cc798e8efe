"""A service's process before it serves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

LOADING = """
import time
from drafter.config import DrafterConfig
from common.rpc import process

def load(settings):
    print("loading", flush=True)
    time.sleep(60)

raise SystemExit(process.run(DrafterConfig, load, ["--model", "m"], prog="drafter", description=""))
"""


def test_a_process_that_still_loads_ends_when_told_even_as_a_containers_first() -> None:
    # That the signal is handled at all, which is what counts there, shows in the exit status: 143
    # and not -15.
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", LOADING], stdout=subprocess.PIPE, env=environment, cwd=ROOT
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
