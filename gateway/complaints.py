"""What speaks against workers as they were set up: told once, since placement just skips them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from gateway.candidate import Candidate, misfit

log = logging.getLogger(__name__)


class Complaints:
    """Follows one fleet.

    Args:
        tokenizers: Fingerprints of those that are loaded.
    """

    def __init__(self, tokenizers: Collection[str]) -> None:
        self._tokenizers = tokenizers
        self._pairs: set[tuple[str, int, str, int]] = set()
        self._models: set[str] = set()

    def check(self, verifiers: Sequence[Candidate], drafters: Sequence[Candidate]) -> None:
        """Tells what has not been told of these workers."""
        for verifier in verifiers:
            self._check_tokenizer(verifier)
            for drafter in drafters:
                self._check_pair(verifier, drafter)

    def forget(self, addresses: Collection[str]) -> None:
        """Lets workers go; of who comes in their place it is told anew."""
        self._pairs = {pair for pair in self._pairs if not {pair[0], pair[2]} & set(addresses)}

    def _check_tokenizer(self, verifier: Candidate) -> None:
        """Tells once per model that text cannot be sent to it."""
        description = verifier.description
        known = description.tokenizer_fingerprint in self._tokenizers
        if not known and description.model not in self._models:
            self._models.add(description.model)
            extra = {"model": description.model, "fingerprint": description.tokenizer_fingerprint}
            log.warning("model takes token ids only: no tokenizer of it is loaded", extra=extra)

    def _check_pair(self, verifier: Candidate, drafter: Candidate) -> None:
        """Tells once per pair of processes that they do not fit; placement just skips them."""
        reason = misfit(verifier.description, drafter.description)
        pair = (
            verifier.address,
            verifier.description.incarnation,
            drafter.address,
            drafter.description.incarnation,
        )
        if reason is None or pair in self._pairs:
            return
        self._pairs.add(pair)
        extra = {"verifier": verifier.address, "drafter": drafter.address, "reason": reason}
        log.warning("drafter does not fit", extra=extra)
