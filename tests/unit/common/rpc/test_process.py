"""A service's process before it serves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common import logs
from common.errors import PacelineError, Stuck
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


def _run(error: Exception) -> int:
    def body(settings: DrafterConfig) -> None:
        raise error

    return process.run(DrafterConfig, body, ["--model", "m"], prog="drafter", description="")


def _missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_what_is_not_installed_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "configure", lambda service, level: None)
    assert _run(_missing("no_such_package.part")) == 2
    expected = "error: no_such_package is not installed; pip install 'paceline-server[all]' brings"
    assert capsys.readouterr().err.startswith(expected)
    with pytest.raises(ModuleNotFoundError):
        _run(_missing("drafter.no_such_module"))


@pytest.mark.parametrize(
    ("error", "ends"), [(PacelineError("it died"), []), (Stuck("it hangs"), [1])]
)
def test_what_cannot_go_on_says_why_in_the_log(
    error: PacelineError,
    ends: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(logs, "configure", lambda service, level: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    assert _run(error) == 1
    assert ended == ends, "with a thread inside the interpreter is not taken down"
    (record,) = caplog.records
    assert (record.levelname, record.message) == ("ERROR", "cannot go on")
    assert vars(record)["reason"] == str(error)
