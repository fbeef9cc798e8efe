"""Lanes within one machine."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest

from common.lanes.near import NearOffer, connect
from tests.unit.common.lanes.end import End


async def test_an_offer_stands_for_one() -> None:
    with closing(NearOffer()) as offer:
        caller = connect(offer.path)
        assert caller is not None
        server = await offer.accept()
    assert connect(offer.path) is None, "taken back"
    one, other = End(caller), End(server)
    one.lane.send(b"hello")
    while not other.came:
        other.take()
        await asyncio.sleep(0)
    one.lane.close()
    other.lane.close()


def test_there_may_be_nowhere_to_put_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="nowhere"):
        NearOffer()
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(OSError, match="too long"):
        NearOffer()
    assert not list(deep.iterdir()), "nothing is left"


def test_without_descriptors_there_is_no_lane_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    offer, before = NearOffer(), getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (0, before[1]))
    try:
        assert connect(offer.path) is None
        offer.close()
    finally:
        setrlimit(RLIMIT_NOFILE, before)
    assert not list(tmp_path.iterdir())


def test_an_offer_of_another_machine_leads_nowhere(tmp_path: Path) -> None:
    assert connect(str(tmp_path / "elsewhere")) is None
    assert connect("x" * 200) is None


@pytest.mark.parametrize(
    ("folder", "mode", "let_in"),
    [
        ("paceline-x", 0o700, True),
        ("paceline-x", 0o770, False),
        ("paceline-x", 0o701, False),
        ("ssh-x", 0o700, False),
    ],
)
def test_sockets_of_others_are_left_alone(
    folder: str, mode: int, let_in: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter elsewhere may name any socket of this machine."""
    place = tmp_path / folder
    place.mkdir(mode)
    place.chmod(mode)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        listener.listen(4)
        connection = connect(str(place / "s"))
        assert (connection is not None) is let_in
        if connection is not None:
            assert not connection.getblocking()
            connection.close()
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
        assert connect(str(place / "s")) is None


def test_a_path_that_metadata_cannot_hold_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ü").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "ü"))
    with pytest.raises(OSError, match="is not ASCII"):
        NearOffer()
    assert not list((tmp_path / "ü").iterdir())
