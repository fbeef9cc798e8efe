"""Who is listed, who has left, and what is known of those that may come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.candidate import Candidate
from gateway.listing import Listing
from tests.unit.gateway.candidates import verifier


class Handle(SimpleNamespace):
    """Of a worker that was reached."""

    address: str
    described: object
    candidate: Candidate
    present: bool

    def leave(self) -> None:
        pass


def made(tier: str, address: str) -> Any:
    candidate = verifier(address)
    described = candidate.description
    return Handle(address=address, described=described, candidate=candidate, present=True)


def test_who_came_back_is_not_remembered_beside_itself() -> None:
    listing = Listing("verifier", made)
    listing.update(["a", "b"])
    for _ in range(3):  # each time another process
        listing.update(["b"])
        assert [(each.address, each.load) for each in listing.away] == [("a", None)]
        listing.leaving["a"].present = False  # type: ignore[misc]
        listing.let_go()
        assert [each.address for each in listing.away] == ["a"]
        assert [each.address for each in listing.recent] == ["a", "b"]
        listing.update(["a", "b"])
        assert not listing.away
        assert sorted(each.address for each in listing.recent) == ["a", "b"]
