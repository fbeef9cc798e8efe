"""What the distribution shows to the world: names, signatures, weight."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import paceline
import pytest
from paceline import errors
from paceline.v1 import inference_pb2

PUBLIC = {
    "AcceptanceRule",
    "ArgumentError",
    "AsyncClient",
    "AsyncGeneration",
    "Chunk",
    "Client",
    "ClientClosedError",
    "FinishReason",
    "Generation",
    "Lookahead",
    "Model",
    "PacelineError",
    "Result",
    "RpcError",
    "Speculation",
    "Tls",
    "TokenSource",
    "Usage",
    "__version__",
    "errors",
}
# What the calls take, of types that are no list of int or of dict.
CALLER = """
from typing import TypedDict
import paceline

class Turn(TypedDict):
    role: str
    content: str

class Id:
    def __index__(self) -> int: return 7

turns: list[Turn] = [{"role": "user", "content": "x"}]
ids = {Id()}
def call(client: paceline.Client) -> None:
    client.generate(messages=turns, stop=iter(["a"]), stop_token_ids=ids)
    client.generate(token_ids=ids)
    client.tokenize(messages=iter(turns))
    client.detokenize(ids)
async def await_call(client: paceline.AsyncClient) -> None:
    client.generate(messages=turns)
    await client.tokenize(messages=iter(turns))
    await client.detokenize(ids)
"""
PAIRS = [
    (paceline.Client, paceline.AsyncClient),
    (paceline.Generation, paceline.AsyncGeneration),
]
TWINS = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}


def methods(cls: type) -> dict[str, inspect.Signature]:
    return {
        TWINS.get(name, name): inspect.signature(member)
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") or name in TWINS or name in TWINS.values()
    }


def test_the_public_names_are_these() -> None:
    assert set(paceline.__all__) == PUBLIC
    assert all(hasattr(paceline, name) for name in PUBLIC)


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS)
def test_both_kinds_have_the_same_methods(sync: type, asynchronous: type) -> None:
    ours, theirs = methods(sync), methods(asynchronous)
    assert set(ours) == set(theirs)
    for name in ours:
        assert ours[name].parameters == theirs[name].parameters, name


def test_every_rpc_has_a_method() -> None:
    rpcs = {m.name for m in inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods}
    assert rpcs == {"Generate", "ListModels", "Tokenize", "Detokenize"}
    assert {"generate", "models", "tokenize", "detokenize"} <= set(methods(paceline.Client))


def test_the_tree_drawn_is_the_tree() -> None:
    tree = {
        name
        for name, member in vars(errors).items()
        if inspect.isclass(member) and issubclass(member, errors.PacelineError)
    }
    drawn = {word for word in (errors.__doc__ or "").split() if word.endswith("Error")}
    assert drawn == tree


@pytest.mark.parametrize(
    "error",
    [
        errors.ArgumentError("seed", "must be from 0"),
        errors.ClientClosedError("closed"),
        errors.NotFoundError("no such model"),
    ],
)
def test_an_error_goes_from_one_process_to_another(error: errors.PacelineError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_the_distribution_brings_the_licence() -> None:
    root = Path(__file__).parents[3]
    assert (root / "client" / "LICENSE").read_bytes() == (root / "LICENSE").read_bytes()


def test_the_hints_refuse_nothing_that_is_taken(tmp_path: Path) -> None:
    caller = tmp_path / "caller.py"
    caller.write_text(CALLER)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(caller)]
    root = Path(__file__).parents[3]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout


@pytest.mark.parametrize("module", ["paceline", "paceline.cli"])
def test_the_import_is_light(module: str) -> None:
    heavy = {"torch", "transformers", "numpy", "rich", "typer", "common"}
    code = f"import sys, {module}; print(*({heavy!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
