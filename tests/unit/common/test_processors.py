"""A container's share of processors is seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common import processors


def first(quota: int, period: int, group: str = "cpu") -> dict[str, str]:
    """The files of a group of version 1."""
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": period}
    return {f"{group}/{name}": f"{value}\n" for name, value in files.items()}


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),  # a part of one is one more
        ("0::/\n", {"cpu.max": "5000 100000"}, 1),
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        ("0::/\n", {"cpu.max": "9900000 100000"}, 64),
        ("0::/\n", {}, 64),
        # The least of all that this one is within; of one elsewhere nothing counts.
        ("0::/a/b\n", {"cpu.max": "max 1", "a/cpu.max": "2 1", "a/b/cpu.max": "3 1"}, 2),
        ("0::/a\n", {"b/cpu.max": "1 1"}, 64),
        ("0::/host/path\n", {"cpu.max": "3 1"}, 3),  # a container that sees itself at the mount
        ("0::/../other\n", {"cpu.max": "3 1"}, 3),
        (
            "5:memory:/a\n4:cpu,cpuacct:/a\n0::/\n",
            first(7, 2, "cpu/a"),
            4,
        ),
        ("4:cpu:/host\n", first(2, 1), 2),
        ("4:cpu:/\n", first(-1, 100000), 64),
        ("4:cpuset:/\n", first(1, 1), 64),
        (None, {}, 64),
    ],
)
def test_a_limit_of_time_is_one_of_processors(
    groups: str | None,
    files: dict[str, str],
    found: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mount, listed = tmp_path / "mount", tmp_path / "cgroup"
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    if groups is not None:
        listed.write_text(groups)
    monkeypatch.setattr(processors, "_MOUNT", mount)
    monkeypatch.setattr(processors, "_GROUPS", listed)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert processors.count() == found
