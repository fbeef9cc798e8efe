"""What services are told at their start is what they understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from common import config
from common.worker_config import WorkerConfig
from drafter.config import DrafterConfig
from launcher.commandline import WorkerOptions, drafter_command, verifier_command
from launcher.commands import DraftQuantize, DType, Quantize
from launcher.models import Models
from verifier.config import VerifierConfig

MODELS = Models(
    target=Path("/target"), draft=Path("/draft"), medusa=Path("/heads"), eagle=Path("/head")
)


def _understood(schema: type[Any], command: list[str]) -> Any:
    at = command.index("-m")
    return config.load(schema, command[at + 2 :], prog="test", description="", environ={})


@pytest.mark.parametrize(
    ("target", "draft"), [("none", "auto"), ("int8", "none"), ("none", "int8")]
)
def test_each_worker_is_told_of_its_own_quantisation(target: str, draft: str) -> None:
    options = WorkerOptions(quantize=target, draft_quantize=draft)
    verifier = _understood(VerifierConfig, verifier_command(MODELS, options))
    assert (verifier.model, verifier.quantize) == ("/target", target)
    assert (verifier.medusa, verifier.eagle) == ("/heads", "/head")
    assert MODELS.draft is not None
    drafter = _understood(DrafterConfig, drafter_command(MODELS.draft, options))
    assert (drafter.model, drafter.quantize) == ("/draft", draft)


@pytest.mark.parametrize(
    ("choices", "schema", "name"),
    [
        (DType, WorkerConfig, "dtype"),
        (Quantize, VerifierConfig, "quantize"),
        (DraftQuantize, DrafterConfig, "quantize"),
    ],
)
def test_whatever_workers_know_can_be_chosen(choices: object, schema: type[Any], name: str) -> None:
    assert get_args(choices) == get_args(get_type_hints(schema)[name])


def test_models_on_one_gpu_share_its_memory() -> None:
    assert MODELS.draft is not None
    for options, shares in (
        (WorkerOptions(), (0.75, 0.15)),
        (WorkerOptions(gpu_memory_share=0.3), (0.25, 0.05)),
    ):
        verifier = _understood(VerifierConfig, verifier_command(MODELS, options))
        drafter = _understood(DrafterConfig, drafter_command(MODELS.draft, options))
        assert (verifier.gpu_memory_share, drafter.gpu_memory_share) == shares
    alone = verifier_command(Models(target=Path("/target")), WorkerOptions())
    assert _understood(VerifierConfig, alone).gpu_memory_share == 0.9


@pytest.mark.parametrize(("processors", "most"), [(8, 6), (4, 4), (2, 3)])
def test_large_passes_of_the_target_take_the_drafters_share_of_the_cores(
    processors: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.processors.count", lambda: processors)
    options = WorkerOptions(threads=3)
    verifier = _understood(VerifierConfig, verifier_command(MODELS, options))
    assert (verifier.threads, verifier.most_threads) == (3, most)
    assert MODELS.draft is not None
    drafter = _understood(DrafterConfig, drafter_command(MODELS.draft, options))
    assert (drafter.threads, drafter.most_threads) == (3, 0)
