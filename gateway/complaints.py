"""What speaks against workers as they were set up: told once, since placement just skips them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from common.drafters import misfit
from gateway.candidate import Candidate
from gateway.tokenizers import Tokenizers, undecided

log = logging.getLogger(__name__)


class Complaints:
    """Follows one fleet.

    Args:
        tokenizers: Loaded ones.
    """

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self._strangers: set[tuple[str, int]] = set()  # processes of drafters
        self._models: set[str] = set()
        self._mixed: set[str] = set()

    def check(self, verifiers: Sequence[Candidate], drafters: Sequence[Candidate]) -> None:
        """Tells what has not been told of these workers."""
        vocabularies: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for verifier in verifiers:
            vocabularies[verifier.description.model].add(verifier.description.vocabulary)
        self._check_mixed(vocabularies)
        for model, found in vocabularies.items():
            self._check_tokenizer(model, [fingerprint for fingerprint, _ in found])
        kinds = {verifier.description.vocabulary: verifier for verifier in verifiers}
        for drafter in drafters:
            self._check_drafter(drafter, [*kinds.values()])

    def forget(self, addresses: Collection[str]) -> None:
        """Lets workers go; of who comes in their place it is told anew."""
        self._strangers = {each for each in self._strangers if each[0] not in addresses}

    def _check_mixed(self, vocabularies: Mapping[str, Collection[tuple[str, int]]]) -> None:
        """Tells of models whose verifiers do not agree what an id means, once until they do."""
        mixed = {model for model, found in vocabularies.items() if len(found) > 1}
        for model in sorted(mixed - self._mixed):
            log.warning(
                "verifiers of one model have different vocabularies: only those of one are used",
                extra={"model": model, "vocabularies": sorted(vocabularies[model])},
            )
        self._mixed = mixed

    def _check_tokenizer(self, model: str, fingerprints: Collection[str]) -> None:
        """Tells once per model that text cannot be sent to it, or may be rendered for another."""
        if model in self._models:
            return
        known = [self._tokenizers[each] for each in fingerprints if each in self._tokenizers]
        if not known:
            self._models.add(model)
            extra = {"model": model, "fingerprint": ", ".join(sorted(fingerprints))}
            log.warning("model takes token ids only: no tokenizer of it is loaded", extra=extra)
        for named in known:
            if undecided(named, model):
                self._models.add(model)
                log.warning(
                    "no directory is named like this model: of those with its tokenizer, which "
                    "differ in chat template or added tokens, the last counts",
                    extra={"model": model, "directories": [*named]},
                )
                return

    def _check_drafter(self, drafter: Candidate, verifiers: Sequence[Candidate]) -> None:
        """Tells once per process that it fits no verifier; placement just skips it."""
        process = drafter.address, drafter.description.incarnation
        reasons = [misfit(verifier.description, drafter.description) for verifier in verifiers]
        if process in self._strangers or None in reasons or not reasons:
            return
        self._strangers.add(process)
        extra = {
            "verifier": verifiers[0].address,
            "drafter": drafter.address,
            "reason": reasons[0],
        }
        log.warning("drafter does not fit", extra=extra)
