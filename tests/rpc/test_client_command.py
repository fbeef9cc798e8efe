"""The command line against a real server: output, chat history, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from paceline.cli._app import app
from paceline.cli.render import RESET
from typer.testing import CliRunner

from tests.rpc.scripted_gateway import ScriptedGateway, scripted_gateway

WAIT_S = 10
# A test run in the background may have been started with SIGINT ignored.
MAIN = """
import signal
from paceline.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as gateway:
        yield gateway


def run(gateway: ScriptedGateway, *args: str, stdin: str | None = None) -> Any:
    env = {"PACELINE_ADDRESS": gateway.address}
    result = CliRunner().invoke(app, list(args), input=stdin, env=env)
    assert result.exit_code == 0, result.output
    return result


def test_text_on_stdout_and_statistics_on_stderr(gateway: ScriptedGateway) -> None:
    result = run(gateway, "generate", "go")
    assert result.stdout == "Once upon a time\n"
    assert result.stderr.startswith("4 tokens in ")
    assert result.stderr.count("\n") == 1


def test_colour_on_demand_with_its_legend(gateway: ScriptedGateway) -> None:
    result = run(gateway, "generate", "go", "--color")
    assert f"Once {RESET}" in result.stdout
    assert result.stderr.startswith("accepted recovered bonus · 4 tokens in ")


def test_json_is_one_line_with_the_fields_of_the_result(gateway: ScriptedGateway) -> None:
    result = run(gateway, "generate", "go", "--json")
    assert (result.stdout.count("\n"), result.stderr) == (1, "")
    fields = json.loads(result.stdout)
    assert fields["text"] == "Once upon a time"
    assert fields["token_ids"] == [11, 12, 13, 14]
    assert fields["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 1}
    assert fields["speculation"]["mean_accepted_length"] == 2.0
    assert set(fields) >= {"finish_reason", "seed", "request_id", "model"}


def test_a_chat_keeps_its_history_and_its_session(gateway: ScriptedGateway) -> None:
    result = run(gateway, "chat", "--system", "Be brief.", stdin="hello\n\nmore\n/exit\nnever\n")
    assert result.stdout == "Once upon a time\nOnce upon a time\n"
    first, second = gateway.requests
    assert [(m.role, m.content) for m in first.chat.messages] == [
        ("system", "Be brief."),
        ("user", "hello"),
    ]
    assert [(m.role, m.content) for m in second.chat.messages][2:] == [
        ("assistant", "Once upon a time"),
        ("user", "more"),
    ]
    assert first.session_id == second.session_id != ""


def test_a_chat_ends_with_its_input_and_speaks_json(gateway: ScriptedGateway) -> None:
    result = run(gateway, "chat", "--json", stdin="hello\nmore\n")
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert texts == ["Once upon a time"] * 2


def test_tokenize_feeds_detokenize(gateway: ScriptedGateway) -> None:
    ids = run(gateway, "tokenize", "ab").stdout
    assert ids == "97,98\n"
    assert run(gateway, "detokenize", "-", stdin=ids).stdout == "ab\n"
    assert json.loads(run(gateway, "tokenize", "ab", "--json").stdout) == {"token_ids": [97, 98]}
    assert json.loads(run(gateway, "detokenize", "97", "--json").stdout) == {"text": "a"}


def test_models(gateway: ScriptedGateway) -> None:
    expected = "tiny  128 tokens  vocabulary 64  text  methods plain, draft\n"
    assert run(gateway, "models").stdout == expected
    (model,) = json.loads(run(gateway, "models", "--json").stdout)["models"]
    assert (model["name"], model["has_chat_template"]) == ("tiny", False)


def test_ctrl_c_cancels_on_the_server_and_exits_130(gateway: ScriptedGateway) -> None:
    command = [sys.executable, "-c", MAIN, "generate", "hang", "--address", gateway.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert gateway.hanging.wait(WAIT_S)
        assert process.stdout is not None
        assert process.stdout.read(5) == b"Once "
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stderr) == (130, b"")
    assert gateway.cancelled.wait(WAIT_S)
