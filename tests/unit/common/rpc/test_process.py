"""A service's process before it serves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common import logs
from common.rpc import process
from drafter.config import DrafterConfig

ROOT = Path(__file__).parents[3]

LOADING = """
import time
from drafter.config import DrafterConfig
from common.rpc import process

def load(settings):
    print("loading", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:  # as something may that is being imported
            pass

raise SystemExit(process.run(DrafterConfig, load, ["--model", "m"], prog="drafter", description=""))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_still_loads_ends_when_told_even_as_a_containers_first(
    number: signal.Signals,
) -> None:
    # That the signal is handled at all, which is what counts there, shows in the exit status: 143
    # and not -15.
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}
    loading = subprocess.Popen(
        [sys.executable, "-c", LOADING], stdout=subprocess.PIPE, env=environment, cwd=ROOT
    )
    with loading:
        assert loading.stdout is not None
        assert loading.stdout.readline() == b"loading\n"
        loading.send_signal(number)
        assert loading.wait(30) == 128 + number


def _run(missing: str) -> int:
    def body(settings: DrafterConfig) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    return process.run(DrafterConfig, body, ["--model", "m"], prog="drafter", description="")


def test_what_is_not_installed_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "configure", lambda service, level: None)
    assert _run("no_such_package.part") == 2
    expected = "error: no_such_package is not installed; pip install 'paceline-server[all]' brings"
    assert capsys.readouterr().err.startswith(expected)
    with pytest.raises(ModuleNotFoundError):
        _run("drafter.no_such_module")
