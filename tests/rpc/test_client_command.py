"""The command line against a real server: output, chat history, terminals, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


class Terminal:
    """A command at a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor

    def say(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode(errors="surrogateescape"))

    def end(self) -> None:
        os.write(self._descriptor, b"\x04")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def until(self, text: str) -> str:
        """Returns what it shows up to a text."""
        shown, deadline = "", time.monotonic() + WAIT_S
        while not shown.endswith(text):
            left = deadline - time.monotonic()
            if not select.select([self._descriptor], [], [], max(0.0, left))[0]:
                raise AssertionError(f"waited in vain for {text!r}, got {shown!r}")
            shown += os.read(self._descriptor, 1).decode(errors="replace")
        return shown.replace("\r\n", "\n")

    def wait(self) -> int:
        return self._process.wait(WAIT_S)


@contextmanager
def at_terminal(gateway: ScriptedGateway, *args: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", MAIN, *args, "--address", gateway.address]
    # In the C locale a byte above 127 is a key held down with Meta.
    env = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


@contextmanager
def chat_at_terminal(gateway: ScriptedGateway) -> Iterator[Terminal]:
    with at_terminal(gateway, "chat") as terminal:
        terminal.until("> ")
        yield terminal


def said(request: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.chat.messages]


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
    assert said(first) == [("system", "Be brief."), ("user", "hello")]
    assert said(second)[2:] == [("assistant", "Once upon a time"), ("user", "more")]
    assert first.session_id == second.session_id != ""


def test_a_chat_ends_with_its_input_and_speaks_json(gateway: ScriptedGateway) -> None:
    result = run(gateway, "chat", "--json", stdin="hello\nmore\n")
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert texts == ["Once upon a time"] * 2


def test_a_chat_without_a_terminal_ends_with_its_first_error(gateway: ScriptedGateway) -> None:
    env = {"PACELINE_ADDRESS": gateway.address}
    lines = "hello\nfail:NOT_FOUND\nnever\n"
    result = CliRunner().invoke(app, ["chat"], input=lines, env=env)
    assert (result.exit_code, result.stdout) == (1, "Once upon a time\n")
    assert result.stderr.splitlines()[1:] == ["error: told to fail with NOT_FOUND"]
    assert len(gateway.requests) == 2


def test_a_turn_that_fails_at_a_terminal_is_taken_back(gateway: ScriptedGateway) -> None:
    with chat_at_terminal(gateway) as terminal:
        terminal.say("hello")
        terminal.until("> ")
        terminal.say("fail:NOT_FOUND")
        assert "error: told to fail with NOT_FOUND\n> " in terminal.until("> ")
        terminal.say("\udcff")
        assert "error: line: is not valid Unicode at character 0\n> " in terminal.until("> ")
        terminal.say("cut")
        assert "a time\nerror: 127.0.0.1" in terminal.until("> ")
        terminal.say("more")
        terminal.until("> ")
        terminal.say("/exit")
        assert terminal.wait() == 0
    assert said(gateway.requests[-1]) == [
        ("user", "hello"),
        ("assistant", "Once upon a time"),
        ("user", "more"),
    ]
    assert len({request.session_id for request in gateway.requests}) == 1


def test_ctrl_c_at_a_terminal_stops_an_answer_and_at_the_prompt_ends(
    gateway: ScriptedGateway,
) -> None:
    with chat_at_terminal(gateway) as terminal:
        terminal.say("hang")
        terminal.until("Once ")
        assert gateway.hanging.wait(WAIT_S)
        terminal.interrupt()
        terminal.until("> ")
        assert gateway.cancelled.wait(WAIT_S)
        terminal.say("more")
        assert "Once upon a time" in terminal.until("> ")
        terminal.interrupt()
        terminal.say("")  # Python does not wake where it comes just before it waits for a line
        assert terminal.wait() == 130
    assert said(gateway.requests[-1]) == [("user", "more")]


def test_a_chat_at_a_terminal_ends_with_ctrl_d(gateway: ScriptedGateway) -> None:
    with chat_at_terminal(gateway) as terminal:
        terminal.say("fail:UNAUTHENTICATED")
        terminal.until("> ")
        terminal.end()
        assert terminal.until("\n") == "\n"
        assert terminal.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [["generate", "go"], ["generate", "go", "--json"], ["models"]])
def test_output_that_finds_no_room_is_one_line(
    gateway: ScriptedGateway, command: list[str], unbuffered: str
) -> None:
    env = {**os.environ, "PACELINE_ADDRESS": gateway.address, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", MAIN, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
            timeout=WAIT_S,
        )
    assert ran.stderr == "error: cannot write the output: [Errno 28] No space left on device\n"
    assert ran.returncode == 1


@pytest.mark.parametrize(
    "command", [["generate", "smile"], ["detokenize", ",".join(map(str, "🙂".encode()))]]
)
def test_output_that_its_encoding_lacks_is_one_line(
    gateway: ScriptedGateway, command: list[str]
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", MAIN, *command, "--address", gateway.address],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        text=True,
        timeout=WAIT_S,
    )
    assert ran.stderr.startswith("error: cannot write the output: 'latin-1' codec can't encode")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("command", ["generate", "tokenize"])
def test_input_that_is_no_text_is_one_line_in_every_locale(
    gateway: ScriptedGateway, command: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", MAIN, command, "-", "--address", gateway.address],
        input=b"a\xff",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        timeout=WAIT_S,
    )
    assert ran.stderr.endswith(b": is not valid Unicode at character 1\n")
    assert (ran.returncode, ran.stderr.count(b"\n")) == (2, 1)


def test_tls_that_fails_is_one_line(gateway: ScriptedGateway) -> None:
    env = {**os.environ, "PACELINE_ADDRESS": gateway.address, "PACELINE_CA": "system"}
    env.pop("GRPC_VERBOSITY", None)
    ran = subprocess.run(
        [sys.executable, "-c", "import paceline_command; paceline_command.main()", "models"],
        capture_output=True,
        env=env,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.stderr.startswith(f"error: something listens at {gateway.address}")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)


def test_tokenize_feeds_detokenize(gateway: ScriptedGateway) -> None:
    ids = run(gateway, "tokenize", "ab").stdout
    assert ids == "97,98\n"
    assert run(gateway, "detokenize", "-", stdin=ids).stdout == "ab\n"
    assert json.loads(run(gateway, "tokenize", "ab", "--json").stdout) == {"token_ids": [97, 98]}
    assert json.loads(run(gateway, "detokenize", "97", "--json").stdout) == {"text": "a"}


def test_text_commands_no_terminal_and_comes_whole_through_a_pipe(
    gateway: ScriptedGateway,
) -> None:
    clear = "\x1b[2J"
    ids = ",".join(str(ord(char)) for char in f"a{clear}b")
    assert run(gateway, "detokenize", ids).stdout == f"a{clear}b\n"
    with at_terminal(gateway, "detokenize", ids) as terminal:
        assert terminal.until("\n") == "a\\x1b[2Jb\n"
    with at_terminal(gateway, "generate", f"--{clear}") as terminal:
        assert clear not in terminal.until("\n")


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


def test_ctrl_c_at_a_terminal_leaves_a_line_of_its_own_to_the_shell(
    gateway: ScriptedGateway,
) -> None:
    with at_terminal(gateway, "generate", "hang") as terminal:
        assert terminal.until("Once ") == "Once "
        assert gateway.hanging.wait(WAIT_S)
        terminal.interrupt()
        assert terminal.until("\n") == "\n"
        assert terminal.wait() == 130
