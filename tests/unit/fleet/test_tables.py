"""Tables: what stands in them, on any screen, and for workers of which little is known."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from fleet import tables
from fleet.finding import Finding, Severity
from fleet.snapshot import Snapshot, State
from tests.unit.fleet.samples import identity, measured, pair, snapshot, worker


def drawn(what: RenderableType, width: int = 140) -> str:
    screen = Console(width=width, force_terminal=False, markup=False, highlight=False)
    with screen.capture() as capture:
        screen.print(what)
    return capture.get()


def row(text: str, first: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.split()[:1] == [first])
    return line.split()


def test_status() -> None:
    now = snapshot(workers=(worker("v1"), worker("v2", state=State.DRAINING), worker("d1")))
    text = drawn(tables.status(now, {"v1": 123.4}))
    assert "verifier/h100: 2 ready, the load calls for 2" in text
    assert "drafter/t4: 1 ready, the load calls for 1" in text
    assert row(text, "v1")[-6:] == ["3+0", "40%", "50%", "30.0", "123", "75%"]
    assert row(text, "v1")[:2] == ["v1", "ready"]
    assert row(text, "v2")[1] == "draining"
    assert row(text, "v2")[-2] == "-", "its speed is not known yet"
    assert "H100 80GB HBM3" in text


def test_an_address_is_no_markup() -> None:
    now = Snapshot(workers=(worker("v[fe80::1]:7071"),))
    assert "v[fe80::1]:7071" in drawn(tables.status(now, {}))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_worker_gives_a_terminal_no_commands(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "300")
    command = "\x1b]52;c;cm0gLXJmIH4K\x07"
    now = Snapshot(
        workers=(worker(f"w{command}", pool=f"p{command}"),),
        pairs=(pair("v1", f"d{command}", misfit=f"m{command}"),),
    )
    screen = tables.console()
    for what in (tables.status(now, {}), tables.pairs(now)):
        screen.print(what)
    assert ("\x1b]" in out.getvalue()) is not terminal
    for name in "wpdm":
        assert (rf"{name}\x1b]52" in out.getvalue()) is terminal


def test_a_worker_that_was_never_reached() -> None:
    lost = worker("v1", state=State.LOST, identity=None, load=None, pool="")
    text = drawn(tables.status(Snapshot(workers=(lost,)), {}))
    assert "verifier/-" in text
    assert row(text, "v1") == ["v1", "lost", *["-"] * 8]


@pytest.mark.parametrize("width", [20, 40, 60, 79])
@pytest.mark.parametrize("state", State)
def test_a_state_is_whole_on_any_screen(state: State, width: int) -> None:
    now = Snapshot(workers=(worker("v10.244.13.17:7072", state=state),))
    assert state in drawn(tables.status(now, {}), width).split()


@pytest.mark.parametrize("width", [20, 80, 100, 140])
def test_a_row_is_one_line_on_any_screen_wide_enough(width: int) -> None:
    address, known = "v10.244.13.17:7072", identity(model="llama", accelerator="NVIDIA T4")
    draining = worker(address, state=State.DRAINING, identity=known)
    text = drawn(tables.status(Snapshot(workers=(draining,)), {address: 1234.0}), width)
    figures = ["30.0", "1234", "-"] if width < 120 else ["50%", "30.0", "1234", "-"]
    gpu = [] if width < 120 else ["T4"]
    if width >= 80:
        assert row(text, address)[1:] == ["draining", *gpu, "llama", "3+0", "40%", *figures]


def test_pairs_on_a_narrow_screen() -> None:
    addresses = ("10.244.13.17:7072", "10.244.13.18:7072")
    both = (pair(*addresses), pair("v2", addresses[1], misfit="its tokenizer differs"))
    text = drawn(tables.pairs(Snapshot(pairs=both)), 80)
    assert row(text, addresses[0])[1:] == [addresses[1], "yes", "up", "75%", "1.80x"]
    assert row(text, "v2")[1:3] == [addresses[1], "misfit"]
    assert "acceptance" in text


@pytest.mark.parametrize("width", [80, 140])
def test_an_address_that_is_long_leaves_room_for_figures(width: int) -> None:
    address = "v[fd00:10:244:1:2:3:4:5]:7072"
    text = drawn(tables.status(Snapshot(workers=(worker(address),)), {}), width)
    assert "run+wait" in text
    assert {"3+0", "40%", "30.0"} <= set(row(text, address[:21]))


def test_pairs() -> None:
    now = snapshot(
        pairs=(
            pair("v1"),
            pair("v2", misfit="its tokenizer differs", offered=False, measured=None),
            pair("v3", measured=measured(drafted_tokens=0, draft_ms=0, gain=0, alive=False)),
        )
    )
    text = drawn(tables.pairs(now))
    assert row(text, "v1")[1:] == ["d1", "yes", "yes", "up", "2", "75%", "3.00", "2.00", "1.80x"]
    assert "no: its tokenizer differs" in text
    assert row(text, "v3")[1:] == ["d1", "yes", "yes", "down", "2", "-", "-", "2.00", "-"]


def test_nothing_to_show() -> None:
    assert drawn(tables.status(Snapshot(), {})) == "No worker is listed.\n"
    assert "No pair" in drawn(tables.pairs(Snapshot()))
    assert drawn(tables.found([])) == "Nothing is wrong.\n"


def test_findings() -> None:
    finding = Finding(severity=Severity.ERROR, what="w [x]", why="y", remedy="r")
    assert drawn(tables.found([finding])) == "error: w [x]\n  why: y\n  change: r\n"


@pytest.mark.parametrize(
    ("accelerator", "device", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "cuda:0", "H100 80GB HBM3"),
        ("Intel(R) Xeon(R) Platinum 8480C", "cpu", "Intel Xeon Platinum 8480C"),
        ("", "cpu", "cpu"),
        ("", "", "-"),
    ],
)
def test_short_names(accelerator: str, device: str, short: str) -> None:
    known = identity(accelerator=accelerator, device=device)
    assert tables.short_gpu(known.accelerator, known.device) == short
