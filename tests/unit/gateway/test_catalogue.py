"""What it takes to list models: as much for each worker, however many there are."""

from collections import Counter
from itertools import chain
from types import SimpleNamespace
from typing import Any

from gateway.candidate import Candidate
from gateway.catalogue import Catalogue
from gateway.listing import Listing
from tests.unit.gateway.candidates import worker


class Handle(SimpleNamespace):
    """Of a worker that was reached; counts how often it is described to placement."""

    looked: Counter[str]
    known: Candidate

    @property
    def address(self) -> str:
        return self.known.address

    @property
    def described(self) -> Any:
        return self.known.description

    @property
    def candidate(self) -> Candidate:
        self.looked[self.known.address] += 1
        return self.known


def test_each_worker_is_looked_at_once_for_all_models() -> None:
    looked: Counter[str] = Counter()

    def made(tier: str, address: str) -> Any:
        return Handle(looked=looked, known=worker(address, model=f"of {address}"))

    tiers = {tier: [f"{tier}{i}" for i in range(9)] for tier in ("verifier", "drafter")}
    listings = [Listing(tier, made) for tier in tiers]
    for listing, addresses in zip(listings, tiers.values(), strict=True):
        listing.update(addresses)
    models = Catalogue(*listings, {}).models()
    assert [model.methods for model in models] == [("plain", "draft")] * 9
    assert looked == Counter(chain(*tiers.values()))
