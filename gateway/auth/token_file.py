"""The file of tenants and the hashes of their tokens.

    tenants:
      acme:
        models: [demo]            # left out: all
        max_concurrent: 16        # left out: no limit of its own
        tokens_per_s: 500         # the same
        burst_tokens: 5000        # left out: what ten seconds give
        operator: true            # may see and change the whole fleet; left out: false
        tokens:
          - sha256: 5e88…         # what `python -m gateway.auth` prints
            expires: 2027-01-01   # left out: never
            models: [demo]        # left out: the tenant's
            operator: false       # left out: the tenant's

Each gateway process counts by itself: two of them let a tenant have twice its limits. A text that
goes on after its gateway was lost counts with what it has already, once it has ended: it does not
keep the tenant's others from going on, and what follows waits.

A token is 256 random bits, so one round of SHA-256 hides it as well as any slow hash would.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from common.config import read_yaml
from common.errors import ConfigError, reason
from gateway.auth.caller import Caller, Limits
from gateway.auth.refresh import Refresh

log = logging.getLogger(__name__)

_MOST_AGE_S = 1.0
_PATIENCE_S = 1.0

_HASH = re.compile("[0-9a-f]{64}")
_LIMITS = ("max_concurrent", "tokens_per_s", "burst_tokens")


def token_hash(token: str) -> str:
    """Returns what stands in the file for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True)
class _Entry:
    caller: Caller
    expires: datetime | None


class TokenFile:
    """The tokens of one file, which is read again within a second of a change.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, or holds something else; says what.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._stat()
        self._tenants, self._entries = _parse(_read(path))
        self._refresh = Refresh(self.renew)

    async def refreshed(self) -> None:
        """Sees to it that what is known is about as new as the file."""
        await self._refresh.ensure(_MOST_AGE_S, _PATIENCE_S)

    def caller(self, token: str) -> Caller | None:
        """Returns whose token it is, or None where it is nobody's, or expired."""
        entry = self._entries.get(token_hash(token))
        if entry is None or (entry.expires is not None and entry.expires <= datetime.now(UTC)):
            return None
        return entry.caller

    def tenant(self, name: str) -> Caller | None:
        """Returns a tenant by name, or None where the file has no such one."""
        return self._tenants.get(name)

    def renew(self) -> None:
        """Reads the file where it has changed; not on an event loop, which files may hold up."""
        try:
            version = self._stat()
            if version == self._version:
                return
            text = _read(self._path)
            self._version = version
            self._tenants, self._entries = _parse(text)
        except ConfigError as error:  # the last good version stays in force
            log.error("token file not taken over", extra={"reason": str(error)})
        else:
            log.info("token file read again", extra={"tenants": len(self._tenants)})

    def _stat(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise ConfigError(f"auth.tokens: {self._path}: {error.strerror}") from error
        return stat.st_mtime_ns, stat.st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"auth.tokens: {path}: cannot be read: {reason(error)}") from error


def _parse(text: bytes) -> tuple[dict[str, Caller], dict[str, _Entry]]:
    tenants, entries = {}, {}
    tree = read_yaml(text, "auth.tokens")
    named = _mapping(tree, "the file", {"tenants"}).get("tenants")
    if not isinstance(named, dict):
        raise ConfigError("auth.tokens: tenants: must hold a mapping for each tenant")
    for name, fields in named.items():
        where = f"tenants.{name}"
        fields = _mapping(fields, where, {"models", "tokens", "operator", *_LIMITS})
        tenant = Caller(
            tenant=str(name),
            models=_models(fields, where),
            operator=_operator(fields, where, default=False),
            limits=_limits(fields, where),
        )
        tenants[str(name)] = tenant
        tokens = fields.get("tokens") or []
        if not isinstance(tokens, list):
            raise ConfigError(f"auth.tokens: {where}.tokens: must be a list")
        for index, token in enumerate(tokens):
            digest, entry = _entry(tenant, token, f"{where}.tokens[{index}]")
            if digest in entries:
                raise ConfigError(f"auth.tokens: {where}.tokens[{index}]: stands there twice")
            entries[digest] = entry
    return tenants, entries


def _entry(tenant: Caller, token: Any, where: str) -> tuple[str, _Entry]:
    fields = _mapping(token, where, {"sha256", "expires", "models", "operator"})
    digest = str(fields.get("sha256", "")).lower()
    if not _HASH.fullmatch(digest):
        raise ConfigError(f"auth.tokens: {where}.sha256: must be 64 hexadecimal digits")
    models = _models(fields, where)
    if models is None:
        models = tenant.models
    elif tenant.models is not None:
        models &= tenant.models
    operator = _operator(fields, where, default=tenant.operator)
    caller = Caller(tenant=tenant.tenant, models=models, operator=operator, limits=tenant.limits)
    return digest, _Entry(caller, _expiry(fields.get("expires"), where))


def _expiry(value: Any, where: str) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise ConfigError(f"auth.tokens: {where}.expires: must be a date, got {value!r}")


def _models(fields: Mapping[str, Any], where: str) -> frozenset[str] | None:
    value = fields.get("models")
    if value is None:
        return None
    if not isinstance(value, list):
        raise ConfigError(f"auth.tokens: {where}.models: must be a list of names, got {value!r}")
    return frozenset(map(str, value))


def _operator(fields: Mapping[str, Any], where: str, *, default: bool) -> bool:
    value = fields.get("operator", default)
    if not isinstance(value, bool):
        raise ConfigError(f"auth.tokens: {where}.operator: must be true or false, got {value!r}")
    return value


def _limits(fields: Mapping[str, Any], where: str) -> Limits:
    given = {name: fields[name] for name in _LIMITS if fields.get(name) is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ConfigError(f"auth.tokens: {where}.{name}: must be above 0, got {value!r}")
    return Limits(**given)


def _mapping(value: Any, where: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"auth.tokens: {where}: must hold {', '.join(sorted(known))}")
    unknown = set(map(str, value)) - known
    if unknown:
        names = ", ".join(sorted(known))
        raise ConfigError(f"auth.tokens: {where}: knows {names}, not {min(unknown)}")
    return value
