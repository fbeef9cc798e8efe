"""`paceline up` and `paceline demo` as a user runs them: real services, real models."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from paceline import Client

PACELINE = [sys.executable, "-m", "paceline"]
READY_S = 90
STOP_S = 45

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _ctrl_c_is_heeded() -> Iterator[None]:
    """Also where the suite runs in the background of a script, and children would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def up(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `paceline up` on a free port; yield it and its address once it serves."""
    command = [*PACELINE, "up", "--port", "0", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process, serving_address(process)
    finally:
        process.kill()
        process.communicate()


def serving_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("Serving on "):
            return line.split()[2].rstrip(".")
    raise AssertionError("it ended:\n" + "".join(seen))


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PACELINE, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, **environment},
    )


def assert_gone(children: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(children, timeout=10)
    running = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert running == []


def test_it_serves_and_leaves_nothing_behind() -> None:
    with up() as (process, address):
        with Client(address) as client:
            prompt = "Once upon a time"
            plain = client.generate(prompt, max_tokens=48, method="plain").result()
            for _ in range(100):  # the first requests may end before the drafter has joined
                drafted = client.generate(prompt, max_tokens=48, method="draft").result()
                if drafted.speculation.accepted_tokens:
                    break
        assert plain.text
        assert drafted.token_ids == plain.token_ids
        assert drafted.speculation.accepted_tokens > 0

        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 4
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=STOP_S)
        assert process.returncode == 0
        assert_gone(children)
    stopped = [line.split()[0] for line in output.splitlines() if "stopped" in line]
    assert stopped == ["gateway", "verifier", "drafter", "store"]


@pytest.fixture(scope="module")
def bare(
    tmp_path_factory: pytest.TempPathFactory, demo_target: Path, demo_draft: Path
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`paceline up` with models without a tokenizer."""
    directory, flags = tmp_path_factory.mktemp("bare"), []
    for role, source in (("target", demo_target), ("draft", demo_draft)):
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (directory / role).mkdir(exist_ok=True)
            shutil.copy(source / name, directory / role / name)
        flags += [f"--{role}", str(directory / role)]
    with up(*flags) as running:
        yield running


def test_models_without_a_tokenizer_serve_ids(bare: tuple[subprocess.Popen[str], str]) -> None:
    with Client(bare[1]) as client:
        (model,) = client.models()
        assert not model.has_tokenizer
        result = client.generate(token_ids=[1, 5, 300], max_tokens=8, ignore_eos=True).result()
        assert len(result.token_ids) == 8
        assert result.text == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has parent-death signals")
def test_killed_it_leaves_nothing_behind_either(bare: tuple[subprocess.Popen[str], str]) -> None:
    process, _ = bare
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 4
    process.kill()
    process.wait(STOP_S)
    assert_gone(children)


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = ran("up", "--port", port)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: port {port} on 127.0.0.1")
    assert result.stderr.count("\n") == 1


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    result = ran("up", "--port", "0", "--target", str(tmp_path / "nowhere"))
    assert result.returncode == 1
    assert result.stderr == f"error: --target: no such directory: {tmp_path / 'nowhere'}\n"


def test_a_corrupt_model_is_said_in_the_services_words(tmp_path: Path, demo_target: Path) -> None:
    shutil.copytree(demo_target, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    result = ran("up", "--port", "0", "--target", str(tmp_path / "model"))
    assert result.returncode == 1
    assert result.stderr.startswith("error: verifier: ")
    assert "model" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_demo_compares_and_finds_the_same_text() -> None:
    result = ran("demo", "--json", "--max-tokens", "24", "--repetitions", "1", NO_COLOR="1")
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert outcome["same_text"] is True
    assert [figures["method"] for figures in outcome["methods"]] == ["draft", "medusa", "eagle"]
    for heads in outcome["methods"][1:]:
        assert heads["mean_accepted_length"] > 1
        assert 0 < heads["acceptance_rate"] <= 1
