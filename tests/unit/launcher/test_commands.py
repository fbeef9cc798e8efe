"""How `paceline up` and `paceline demo` end, and what they refuse."""

from __future__ import annotations

import signal

import pytest
import typer
from typer.testing import CliRunner

from common.errors import Unavailable
from launcher.commands import ending_well_when_interrupted, plain_console, up


def test_the_last_words_of_a_service_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, ending_well_when_interrupted():
        raise Unavailable("verifier died (exit 1)\n  one\n  two")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "error: verifier died (exit 1)\n  one\n  two\n"


def test_who_is_told_to_stop_ends_as_asked() -> None:
    with pytest.raises(typer.Exit) as ended, ending_well_when_interrupted(130):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.exit_code == 130


def test_an_address_that_looks_like_markup_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain_console().print("Serving on [fd00::2]:7070.")
    assert capsys.readouterr().out == "Serving on [fd00::2]:7070.\n"


def test_threads_beyond_all_use_are_wrong_usage() -> None:
    app = typer.Typer()
    app.command()(up)
    assert CliRunner().invoke(app, ["--threads", "100000"]).exit_code == 2
