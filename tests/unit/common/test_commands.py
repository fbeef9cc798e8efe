"""How commands end: one line and an exit code, whoever raised the error."""

from __future__ import annotations

import pytest
import typer
from paceline import ArgumentError
from paceline.errors import UnavailableError

from common.commands import ending_well
from common.errors import ConfigError, InvalidArgument


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("pool", "must be\nTIER/NAME"), 2),
        (ArgumentError("pool", "must be TIER/NAME"), 2),
        (ConfigError("pool: must be TIER/NAME"), 1),
        (UnavailableError("pool: must be TIER/NAME"), 1),
    ],
)
def test_an_error_is_one_line_and_a_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, ending_well():
        raise error
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == "error: pool: must be TIER/NAME\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(KeyError), ending_well():
        raise KeyError("pool")
