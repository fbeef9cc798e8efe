from __future__ import annotations

import io

from rich.console import Console

from launcher.display import Display
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


def test_quiet_shows_nothing() -> None:
    out = io.StringIO()
    with Display(Console(file=out), quiet=True) as display:
        display.update(services())
    assert out.getvalue() == ""
