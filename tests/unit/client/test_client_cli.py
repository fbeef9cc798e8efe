"""The command line: arguments, help, lazy commands, exit codes. No server."""

from __future__ import annotations

import errno
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import paceline
import paceline_command
import pytest
import typer
from paceline import cli
from paceline.cli import _group, _options, _server_commands, main
from paceline.cli._app import app
from typer.testing import CliRunner

from gateway.validation import METHODS

SDK_PARAMETERS = inspect.signature(paceline.Client.generate).parameters
NOWHERE = {"PACELINE_ADDRESS": "127.0.0.1:1", "COLUMNS": "120", "NO_COLOR": "1"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Keeps what would have been sent, and fails like a full deployment."""
    calls: list[dict[str, Any]] = []

    def generate(self: Any, prompt: str | None = None, **arguments: Any) -> Any:
        calls.append({"prompt": prompt, **arguments})
        raise paceline.errors.ResourceExhaustedError("the deployment is\nfull")

    monkeypatch.setattr(paceline.Client, "generate", generate)
    return calls


@pytest.fixture
def server_commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Installs a distribution with two commands and a group, and one that lacks an extra."""
    module = ModuleType("paceline_fake_commands")

    def up(port: int = 7070) -> None:
        """Start everything here."""
        print(f"up on {port}")

    module.up = up  # type: ignore[attr-defined]
    module.fleet = typer.Typer(name="fleet", no_args_is_help=True)  # type: ignore[attr-defined]
    module.fleet.command("status")(up)
    module.fleet.command("plan")(up)
    points = EntryPoints(
        EntryPoint(name, value, _server_commands.GROUP)
        for name, value in [
            ("up", "paceline_fake_commands:up"),
            ("train", "paceline_fake_commands:up"),
            ("fleet", "paceline_fake_commands:fleet"),
            ("bench", "no_such_module:bench"),
        ]
    )
    monkeypatch.setattr(_server_commands, "entry_points", points.select)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    _server_commands.summaries.cache_clear()
    yield module
    _server_commands.summaries.cache_clear()


def run(*args: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, list(args), input=stdin, env=NOWHERE)


def test_every_option_of_the_sdk_is_an_option_of_the_command() -> None:
    options = set(inspect.signature(_options.GenerationOptions).parameters)
    by_command = {"self", "prompt", "token_ids", "messages", "model", "session_id"}
    assert options == set(SDK_PARAMETERS) - by_command


def test_options_reach_the_sdk(sent: list[dict[str, Any]]) -> None:
    run(
        *("generate", "--token-ids", "1,2, 3", "--max-tokens", "4", "--temperature", "0.5"),
        *("--top-k", "5", "--top-p", "0.9", "--min-p", "0.1", "--repetition-penalty", "1.1"),
        *("--logit-bias", "7=-1.5", "--logit-bias", "8=2", "--seed", "9", "--stop", "a"),
        *("--stop", "b", "--stop-token-ids", "6", "--ignore-eos", "--method", "draft"),
        *(
            "--draft-tokens",
            "3",
            "--lookahead",
            "7,5,0",
            "--acceptance",
            "typical",
            "--timeout",
            "2.5",
            "--no-resume",
        ),
        *("--model", "m", "--session-id", "s"),
    )
    assert sent == [
        {
            "prompt": None,
            "token_ids": [1, 2, 3],
            "model": "m",
            "session_id": "s",
            "max_tokens": 4,
            "temperature": 0.5,
            "top_k": 5,
            "top_p": 0.9,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "logit_bias": {7: -1.5, 8: 2.0},
            "seed": 9,
            "stop": ["a", "b"],
            "stop_token_ids": [6],
            "ignore_eos": True,
            "method": "draft",
            "draft_tokens": 3,
            "lookahead": paceline.Lookahead(window=7, ngram=5),
            "acceptance": "typical",
            "timeout": 2.5,
            "resume": False,
        }
    ]


def test_defaults_of_the_command_are_those_of_the_sdk(sent: list[dict[str, Any]]) -> None:
    run("generate", "-", stdin="from a pipe")
    defaults = {
        name: parameter.default
        for name, parameter in SDK_PARAMETERS.items()
        if name not in ("self", "prompt", "messages")
    }
    empty = {"logit_bias": {}, "stop_token_ids": []}
    assert sent == [{**defaults, **empty, "prompt": "from a pipe"}]


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_a_byte_order_mark_is_no_part_of_a_prompt(
    monkeypatch: pytest.MonkeyPatch, sent: list[dict[str, Any]], platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    run("generate", "-", stdin="\ufeffé\ufeff")
    run("chat", stdin="\ufeffé\n")
    assert sent[0]["prompt"] == "é\ufeff"
    assert sent[1]["messages"] == [{"role": "user", "content": "é"}]


def test_on_windows_pipes_are_utf_8(
    monkeypatch: pytest.MonkeyPatch, sent: list[dict[str, Any]]
) -> None:
    written = io.BytesIO()
    stdin = io.TextIOWrapper(io.BytesIO("é…".encode()), encoding="cp1252")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    with pytest.raises(SystemExit):
        app(["generate", "-"])
    assert sent[0]["prompt"] == "é…"
    assert sys.stdout.encoding == "utf-8"


def test_an_error_is_one_line_and_exit_code_1(sent: list[dict[str, Any]]) -> None:
    result = run("generate", "hello")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: the deployment is full\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate"], "prompt: give either it, - for standard input, or --token-ids"),
        (["generate", "a", "--token-ids", "1"], "prompt: give either it"),
        (["generate", "a", "--seed", "-1"], "seed: must be from 0 to"),
        (["generate", "a", "--max-tokens", "0"], "max_tokens: must be from 1 to 4294967295, got 0"),
        (["generate", "a", "--max-tokens", "-3"], "max_tokens: must be from 1 to 4294967295, got"),
        (["generate", "a", "--timeout", "-inf"], "timeout: must be above 0 seconds, got -inf"),
        (["models", "--timeout", "0"], "timeout: must be above 0 seconds, got 0"),
        (["tokenize", "a", "--timeout", "0"], "timeout: must be above 0 seconds, got 0"),
        (["detokenize", "1", "--timeout", "0"], "timeout: must be above 0 seconds, got 0"),
        (["chat", "--logit-bias", "5"], "--logit-bias: must be ID=BIAS as in 42=-1.5"),
        (["generate", "--token-ids", "1,x"], "--token-ids: must be ids as in 1,2,3, got '1,x'"),
        (["generate", "a", "--logit-bias", "5"], "--logit-bias: must be ID=BIAS as in 42=-1.5"),
        (["generate", "a", "--lookahead", "5,3"], "--lookahead: must be W,N,G as in 15,5,15, got"),
        (["generate", "a", "--acceptance", "magic"], "must be one of coupled, rejection, typical"),
        (["generate", "a", "--address", "http://x"], "address: must be host:port"),
        (["generate", "a", "--max-tokens", "many"], "see paceline generate --help"),
        (["generate", "a", "--no-such-option"], "see paceline generate --help"),
        (["tokenize"], "see paceline tokenize --help"),
        (["nonsense"], "No such command 'nonsense'; see paceline --help"),
        (["up", "--dtype", "float8"], "'--dtype': 'float8' is not one of"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments, env=NOWHERE, prog_name="paceline")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    "command", ["generate", "chat", "models", "tokenize", "detokenize", "up", "demo", "bench"]
)
def test_every_help_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: paceline {command}" in result.stdout


@pytest.mark.parametrize("command", ["generate", "up"])
def test_help_has_marks_for_what_a_terminal_cannot_show(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    monkeypatch.setenv("COLUMNS", "40")  # some names are cut, with an ellipsis
    with pytest.raises(SystemExit) as caught:
        app([command, "--help"])
    sys.stdout.flush()
    assert (caught.value.code, b"?" in written.getvalue()) == (0, True)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_names_the_methods(command: str) -> None:
    text = run(command, "--help").stdout
    for method in (*METHODS, "draft+ngram"):
        assert method in text


def test_ctrl_c_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def models(self: Any, **_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(paceline.Client, "models", models)
    assert run("models").exit_code == 130


@pytest.mark.parametrize(
    ("start", "missing"), [(main, "paceline.cli._app"), (paceline_command.main, "paceline.cli")]
)
def test_so_it_does_before_the_command_is_there(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[], None], missing: str
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == missing:
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, missing)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        start()
    assert caught.value.code == 130


@pytest.mark.parametrize("verbosity", [None, "DEBUG"])
def test_what_silences_grpc_is_left_to_no_service(
    monkeypatch: pytest.MonkeyPatch, verbosity: str | None
) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if verbosity is not None:
        monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    left: list[str | None] = []
    monkeypatch.setattr(cli, "main", lambda: left.append(os.environ.get("GRPC_VERBOSITY")))
    paceline_command.main()
    assert left == [verbosity]


@pytest.mark.parametrize(
    ("stream", "command", "message"),
    [
        ("stdin", "generate -", "cannot read standard input: it is closed"),
        ("stdin", "chat", "cannot read standard input: it is closed"),
        ("stdout", "models", "cannot write the output: standard output is closed"),
        ("stdout", "chat", "cannot write the output: standard output is closed"),
        ("stdout", "fleet status", "cannot write the output: standard output is closed"),
    ],
)
def test_a_closed_stream_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stream: str,
    command: str,
    message: str,
) -> None:
    monkeypatch.setattr(sys, stream, None)  # as Python has it where the descriptor is closed
    with pytest.raises(SystemExit) as caught:
        app(command.split())
    assert (caught.value.code, capsys.readouterr().err) == (1, f"error: {message}\n")


@pytest.mark.parametrize(
    ("platform", "unwritten", "silent"),
    [("win32", True, True), ("win32", False, False), ("linux", True, False)],
)
def test_a_pipe_that_was_closed_on_windows_ends_in_silence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    platform: str,
    unwritten: bool,
    silent: bool,
) -> None:
    """Where output is left that cannot be written: else it was another file's error."""

    def models(self: Any, **_: Any) -> Any:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(paceline.Client, "models", models)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(_group, "_drop_unwritten", lambda: unwritten)
    with pytest.raises(SystemExit if silent else OSError) as caught:
        app(["models"])
    if silent:
        assert (getattr(caught.value, "code", None), capsys.readouterr().err) == (1, "")


@pytest.mark.parametrize(
    ("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals_that_have_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert _options.use_color(None) is colored
    assert _options.use_color(True)


@pytest.mark.parametrize("given", [None, True, False])
def test_a_console_of_windows_is_asked_to_show_colour(
    monkeypatch: pytest.MonkeyPatch, given: bool | None
) -> None:
    asked: list[bool] = []
    colorama = ModuleType("colorama")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "colorama", colorama)
    assert _options.use_color(given) is bool(given)  # an old one cannot ask
    colorama.just_fix_windows_console = lambda: asked.append(True)  # type: ignore[attr-defined]
    assert _options.use_color(given) is (given is not False)
    assert asked


def test_help_and_version_need_no_command() -> None:
    assert run("--version").stdout == f"paceline {paceline.__version__}\n"
    result = run()
    assert result.exit_code == 0
    assert "detokenize" in result.stdout


def test_help_lists_server_commands_without_importing_them(server_commands: ModuleType) -> None:
    del sys.modules[server_commands.__name__]
    result = run("--help")
    assert result.exit_code == 0
    assert "Start a gateway, a verifier and a drafter" in result.stdout
    assert "train" in result.stdout


def test_a_server_command_runs_with_its_own_options(server_commands: ModuleType) -> None:
    assert run("up", "--port", "8").stdout == "up on 8\n"
    assert "Start everything here" in run("up", "--help").stdout


def test_a_group_without_a_command_is_its_help(server_commands: ModuleType) -> None:
    result = run("fleet")
    assert (result.exit_code, result.stderr) == (2, "")
    assert "plan" in result.stdout


@pytest.mark.parametrize("name", ["demo", "bench"])
def test_a_server_command_that_is_not_installed_says_what_to_install(
    server_commands: ModuleType, name: str
) -> None:
    result = run(name)
    assert result.exit_code == 1
    needs = f'error: `paceline {name}` needs the server distribution: pip install "paceline-server'
    assert result.stderr.startswith(needs)
    assert result.stderr.count("\n") == 1
