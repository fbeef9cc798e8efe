"""Who may run now: what is over a limit is refused at once, never queued.

Limits are those of one process: gateways do not tell each other what tenants use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import ResourceExhausted
from common.fair_share import over_share
from gateway.auth.caller import ANYONE, Caller, Limits
from gateway.bucket import Bucket

# Whose refusals are counted by name: tenants of tokens that others issue may be any number.
_MOST_TENANTS = 99


class Admission:
    """Counts running requests and the tokens they take.

    Args:
        max_concurrent: How many may run.

    Attributes:
        running: How many do.
        refused: Requests that were over a limit, by tenant.
    """

    def __init__(self, max_concurrent: int) -> None:
        self.running = 0
        self.refused: Counter[str] = Counter()
        self._max_concurrent = max_concurrent
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def slot(self, caller: Caller = ANYONE) -> Iterator[Account]:
        """Holds a place while a request runs.

        Args:
            caller: Whose request.

        Yields:
            What takes note of the tokens.

        Raises:
            ResourceExhausted: None is free, or the tenant has used up its own.
        """
        try:
            account = self._admit(caller)
        except ResourceExhausted:
            self._count_refusal(caller.tenant)
            raise
        self.running += 1
        account.running += 1
        try:
            yield account
        finally:
            self.running -= 1
            account.running -= 1
            if account.forgettable:
                self._accounts.pop(caller.tenant, None)

    def _admit(self, caller: Caller) -> Account:
        if self.running >= self._max_concurrent:
            raise ResourceExhausted(
                f"{self.running} requests are running, which is this gateway's limit "
                "(max_concurrent); retry later"
            )
        account = self._account(caller)
        account.check()
        if caller.tenant and over_share(account.running, self.running, self._max_concurrent):
            raise ResourceExhausted(
                f"{account.running} requests of this tenant are running, and the gateway's last "
                "places are for others; retry later"
            )
        return account

    def _count_refusal(self, tenant: str) -> None:
        known = tenant in self.refused or len(self.refused) < _MOST_TENANTS
        self.refused[tenant if known else "other"] += 1

    def _account(self, caller: Caller) -> Account:
        account = self._accounts.setdefault(caller.tenant, Account())
        account.limit(caller.limits)
        return account


class Account:
    """What one tenant uses.

    Attributes:
        running: Its requests that run.
    """

    def __init__(self) -> None:
        self.running = 0
        self._limits = Limits()
        self._bucket: Bucket | None = None

    @property
    def forgettable(self) -> bool:
        """Whether a new account would be as good."""
        return not self.running and self._bucket is None

    def limit(self, limits: Limits) -> None:
        """Takes over limits; changed ones start with a full burst."""
        if limits == self._limits:
            return
        self._limits = limits
        rate = limits.tokens_per_s
        self._bucket = Bucket(rate, limits.burst) if rate else None

    def check(self) -> None:
        """Raises ResourceExhausted where a further request is over a limit."""
        most = self._limits.max_concurrent
        if most is not None and self.running >= most:
            raise ResourceExhausted(
                f"{self.running} requests of this tenant are running, which is its limit; "
                "retry later"
            )
        if self._bucket is not None and self._bucket.level <= 0:
            raise ResourceExhausted(
                f"this tenant's tokens are used up ({self._limits.tokens_per_s:g} a second); "
                f"retry in {max(0.1, self._bucket.wait_s()):.1f} s"
            )

    def charge(self, tokens: int) -> None:
        """Notes tokens taken; where that is too many, the next request has to wait."""
        if self._bucket is not None:
            self._bucket.charge(tokens)
