"""Which models the verifiers add up to, and which of them serve one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from common.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from gateway.candidate import Candidate
from gateway.listing import Listing
from gateway.model import Model
from gateway.placement import alike, offered_methods
from gateway.tokenizers import Tokenizers, chosen
from gateway.validation import MAX_NAME_CHARS
from gateway.workers import candidates


class Catalogue:
    """Finds models by name.

    Args:
        verifiers: Who serves them.
        drafters: Decide which methods are offered.
        tokenizers: Loaded ones.
    """

    def __init__(self, verifiers: Listing, drafters: Listing, tokenizers: Tokenizers) -> None:
        self._verifiers, self._drafters = verifiers, drafters
        self._tokenizers = tokenizers

    def models(self, scope: Collection[str] | None = None) -> list[Model]:
        """Returns the models of all verifiers ever reached, by name.

        Args:
            scope: Models the caller may know of; None for all.

        Raises:
            Unavailable: No verifier of them has been reached yet.
        """
        drafters = self._drafters.recent
        return [self._model(name, drafters) for name in self._names(scope)]

    def resolve(
        self, name: str, scope: Collection[str] | None = None, numerics: str | None = None
    ) -> Model:
        """Finds a model; an empty name means the only one.

        Args:
            name: Its name.
            scope: Models the caller may know of; None for all.
            numerics: Fingerprint of who began what is to go on; None where nothing was begun.

        Raises:
            PermissionDenied: It is not one of those, whether it is served or not.
            NotFound: No verifier serves it.
            InvalidArgument: The name is empty, but there are several models.
            Unavailable: No verifier has been reached yet, or none of it is listed now: one was of
                late, or it began what is to go on.
        """
        if name and scope is not None and name not in scope:
            raise PermissionDenied("model: these credentials do not cover it")
        served = self._names(scope)
        if name in served:
            return self._model(name, self._drafters.recent, numerics)
        known = sorted({*served, *self._names_away(scope)})
        if name in known or (name and numerics is not None):
            raise Unavailable(f"no verifier of {name[:MAX_NAME_CHARS]!r} is reachable")
        listed = ", ".join(known)
        if name:
            raise NotFound(f"model: no {name[:MAX_NAME_CHARS]!r} here; served: {listed}")
        if len(known) > 1:
            raise InvalidArgument("model", f"must name one of {listed}")
        return self._model(served[0], self._drafters.recent, numerics)

    def serving(self, model: Model, numerics: str | None = None) -> list[Candidate]:
        """Returns the verifiers to which a model's ids mean what they mean to the gateway.

        Args:
            model: As it was resolved.
            numerics: Fingerprint that they have to have; None for any.
        """
        named = self._named(model.name, numerics)
        return [each for each in named if each.description.vocabulary == model.vocabulary]

    def away(self, model: Model) -> list[Candidate]:
        """Returns the verifiers of that kind that are listed no longer, but were of late."""
        return self._away(model.name, model.vocabulary)

    def _names(self, scope: Collection[str] | None) -> list[str]:
        described = (each.described for each in self._verifiers.listed.values())
        names = sorted({each.model for each in described if each is not None})
        if scope is not None:
            names = [name for name in names if name in scope]
            if not names:
                raise Unavailable(
                    "no verifier of a model that these credentials cover is reachable"
                )
        if not names:
            listed = ", ".join(self._verifiers.listed) or "none found yet"
            raise Unavailable(f"no verifier is reachable: {listed}")
        return names

    def _names_away(self, scope: Collection[str] | None) -> set[str]:
        """Models of verifiers that are listed no longer, but were of late."""
        names = {each.description.model for each in self._verifiers.away}
        return names if scope is None else names.intersection(scope)

    def _away(self, name: str, vocabulary: tuple[str, int]) -> list[Candidate]:
        return [
            each
            for each in self._verifiers.away
            if each.description.model == name and each.description.vocabulary == vocabulary
        ]

    def _named(self, name: str, numerics: str | None = None) -> list[Candidate]:
        named = {
            at: each
            for at, each in self._verifiers.listed.items()
            if each.described is not None and each.described.model == name
        }
        return [
            each
            for each in candidates(named)
            if numerics in (None, each.description.numerics_fingerprint)
        ]

    def _model(
        self, name: str, drafters: Sequence[Candidate], numerics: str | None = None
    ) -> Model:
        named = self._named(name, numerics) or self._named(name)
        verifiers = alike(named, self._tokenizers)
        first = verifiers[0].description
        known = [*verifiers, *self._away(name, first.vocabulary)]
        return Model(
            name=name,
            tokenizer_fingerprint=first.tokenizer_fingerprint,
            vocab_size=first.vocab_size,
            # Any of them may get the request.
            max_model_len=min(each.description.max_model_len for each in verifiers),
            methods=offered_methods(known, drafters),
            eos_token_ids=first.eos_token_ids,
            tokenizer=chosen(self._tokenizers.get(first.tokenizer_fingerprint, {}), name),
        )
