"""What a worker takes of a GPU for its cache, and beside it; the GPU is stood in for."""

from __future__ import annotations

import pytest
import torch

from common.model.cuda import memory

GIB = 1 << 30
LEAST = 256 << 20


class Gpu:
    """Memory that processes take; this one has loaded more than it still needs."""

    def __init__(self, total_gib: float, *, held_gib: float, others_gib: float) -> None:
        self._total, self._others = int(total_gib * GIB), int(others_gib * GIB)
        self._held, self._unused = int(held_gib * GIB), GIB

    def empty(self) -> None:
        self._unused = 0

    def reserved(self, device: torch.device) -> int:
        return self._held + self._unused

    def info(self, device: torch.device) -> tuple[int, int]:
        return self._total - self._others - self.reserved(device), self._total

    def cache_gib(self, monkeypatch: pytest.MonkeyPatch, share: float) -> float:
        self._stand_in(monkeypatch)
        return memory.cache_bytes(torch.device("cuda"), share, LEAST) / GIB

    def spare_gib(self, monkeypatch: pytest.MonkeyPatch) -> float:
        self._stand_in(monkeypatch)
        return memory.gathered_bytes(torch.device("cuda"), LEAST) / GIB

    def _stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)
        monkeypatch.setattr(torch.cuda, "memory_reserved", self.reserved)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self._held)
        monkeypatch.setattr(torch.cuda, "mem_get_info", self.info)


@pytest.mark.parametrize(
    ("total", "held", "others", "share", "cache"),
    [
        (80, 16, 0.5, 0.9, 72 - 16 - 1),
        (80, 16, 0.5, 0.75, 60 - 16 - 1),  # a drafter has come, or will
        (80, 16, 9.5, 0.75, 60 - 16 - 1),
        (80, 16, 40, 0.9, 24 - 1),  # no more than is free
        (24, 16, 3.5, 0.75, 18 - 16 - 1),
        (16, 14, 1.5, 0.9, 0.25),  # and the least in any case
        (8, 2, 6, 0.5, 0.25),
    ],
)
def test_the_cache_is_what_weights_leave_of_a_share(
    total: float,
    held: float,
    others: float,
    share: float,
    cache: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(total, held_gib=held, others_gib=others)
    assert gpu.cache_gib(monkeypatch, share) == pytest.approx(cache, abs=1e-6)


@pytest.mark.parametrize(
    ("total", "held", "others", "spare"),
    [
        (80, 71, 0.5, 8.5 / 4),  # what torch holds unused is free
        (80, 30, 10, 80 / 32),  # no more, whatever others have left
        (80, 71, 8.5, 0.25),  # and the least in any case
        (16, 14, 0.4, 0.4),
    ],
)
def test_what_may_be_gathered_is_a_part_of_what_is_free(
    total: float, held: float, others: float, spare: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(total, held_gib=held, others_gib=others)
    assert gpu.spare_gib(monkeypatch) == pytest.approx(spare, abs=1e-6)


def test_on_a_cpu_it_is_the_least() -> None:
    assert memory.cache_bytes(torch.device("cpu"), 0.9, LEAST) == LEAST
    assert memory.gathered_bytes(torch.device("cpu"), LEAST) == LEAST
