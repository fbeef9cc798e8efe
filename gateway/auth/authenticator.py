"""From a call's metadata to its caller. Whatever is wrong, the answer is the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from common.errors import Unauthenticated
from gateway.auth.caller import ANYONE, Caller
from gateway.auth.config import AuthConfig
from gateway.auth.jwt import JwtVerifier
from gateway.auth.token_file import TokenFile

log = logging.getLogger(__name__)

Metadata = Iterable[tuple[str, str | bytes]]


class Authenticator:
    """Tells callers apart.

    Args:
        config: Where tokens come from.

    Raises:
        ConfigError: Tokens or keys cannot be read.
    """

    def __init__(self, config: AuthConfig) -> None:
        self._required = config.required
        self._tokens = TokenFile(config.tokens) if config.tokens is not None else None
        self._jwt = JwtVerifier(config) if config.jwks else None

    async def identify(self, metadata: Metadata) -> Caller:
        """Returns who calls.

        Args:
            metadata: The call's; the token is in `authorization`, after "Bearer".

        Raises:
            Unauthenticated: Nobody that is known here.
        """
        if not self._required:
            return ANYONE
        caller = await self._named(_bearer(metadata))
        if caller is None:
            raise Unauthenticated("a valid bearer token is needed")
        return caller

    async def _named(self, token: str) -> Caller | None:
        if not token:
            return None
        if self._tokens is not None:
            await self._tokens.refreshed()
            if (caller := self._tokens.caller(token)) is not None:
                return caller
        if self._jwt is None or token.count(".") != 2:
            return None
        return self._limited(await self._jwt.caller(token))

    def _limited(self, caller: Caller | None) -> Caller | None:
        """Gives a JWT its tenant's limits in the file; a tenant that is not listed is refused."""
        if caller is None or self._tokens is None:
            return caller
        tenant = self._tokens.tenant(caller.tenant)
        if tenant is None:
            log.info("JWT refused", extra={"reason": "unknown tenant"})
            return None
        models = tenant.models if caller.models is None else caller.models
        if tenant.models is not None and models is not None:
            models &= tenant.models
        return Caller(
            tenant=tenant.tenant,
            models=models,
            operator=caller.operator or tenant.operator,
            limits=tenant.limits,
        )


def _bearer(metadata: Metadata) -> str:
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""
