"""Whose fault an internal error is: the verifier's, or the request's.

A verifier with a sick GPU fails whatever it is asked, and has to lose its traffic; a request
that trips over a bug fails wherever it runs, and must not take one verifier after another out
of service. So such a request is moved once. Where it goes on then, the first verifier is to
blame; where it fails again, nobody is.
"""

from __future__ import annotations

from gateway.breaker import Breaker


class Verdict:
    """Follows one generation."""

    def __init__(self) -> None:
        self._suspect: Breaker | None = None
        self._heard = False

    def accuse(self, breaker: Breaker) -> bool:
        """Takes note of an internal error.

        Args:
            breaker: Of the verifier that reported it.

        Returns:
            Whether another one may be asked; False after the second error.
        """
        first, self._heard = not self._heard, True
        self._suspect = breaker if first else None
        return first

    def convict(self) -> None:
        """It was the verifier: another one goes on with the request, or there is none to ask."""
        if self._suspect is not None:
            self._suspect.failed()
            self._suspect = None
