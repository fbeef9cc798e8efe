from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from launcher.display import Display
from launcher.process import Process
from launcher.service import Service, State


def services() -> list[Service]:
    return [
        Service("drafter", needed=False, state=State.STARTING, about="/models/draft"),
        Service("verifier", needed=True, state=State.SERVING, address="127.0.0.1:9", took_s=1.25),
        Service("gateway", needed=True),
    ]


def test_changes_are_one_line_each_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with Display(Console(file=out)) as display:
        display.update(services())
        display.update(services())
        lost = services()
        lost[0].state = State.LOST
        display.update(lost)
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["drafter", "starting", "/models/draft"],
        ["verifier", "serving", "127.0.0.1:9", "(1.2", "s)"],
        ["drafter", "lost", "(requests", "go", "on", "without", "it)"],
    ]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_what_services_warn_of_is_shown_once(
    quiet: bool, terminal: bool, tmp_path: Path, eventually: Callable[[Callable[[], object]], bool]
) -> None:
    told = '{"level": "warning", "event": "drafter does not fit", "drafter": "d:1"}'
    process = Process(
        "gateway", [sys.executable, "-c", f"print({told!r}); print({told!r})"], log=tmp_path / "log"
    )
    assert eventually(lambda: process.exit_code() == 0)
    process.stop(1)
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    with Display(console, quiet=quiet) as display:
        gateway = Service("gateway", needed=True, state=State.SERVING, process=process)
        display.update([gateway])
        display.update([gateway])
    words = "gateway   warning   drafter does not fit (drafter d:1)"
    assert out.getvalue().count(words) == (not quiet)


def test_a_terminal_gets_a_table_then_lines() -> None:
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=100)) as display:
        display.update(services())
        display.settle()
        table = out.getvalue()
        display.update([Service("gateway", needed=True, state=State.STOPPED)])
    assert "verifier" in table
    assert "127.0.0.1:9" in table
    assert out.getvalue().removeprefix(table).split() == ["gateway", "stopped"]


@pytest.mark.parametrize("terminal", [False, True])
def test_paths_are_shown_as_they_are(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    path = "/my models/a [x] :smile: 50%"
    with Display(console) as display:
        display.update([Service("verifier", needed=True, state=State.STARTING, about=path)])
    assert path in out.getvalue()


def test_quiet_shows_nothing() -> None:
    out = io.StringIO()
    with Display(Console(file=out), quiet=True) as display:
        display.update(services())
    assert out.getvalue() == ""
