"""Callers with a JWT, verified against a JSON Web Key Set (RFC 7519, RFC 7517) by PyJWT."""

from __future__ import annotations

import json
import logging
from typing import Any

from common.errors import ConfigError
from gateway.auth.caller import Caller
from gateway.auth.config import AuthConfig
from gateway.auth.key_set import KeySet

log = logging.getLogger(__name__)

# Public keys only: with a shared secret whoever can check a token can make one.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")

_LEEWAY_S = 10.0


class JwtVerifier:
    """Checks JWTs.

    Args:
        config: Keys and claims.

    Raises:
        ConfigError: PyJWT is not installed, or the keys cannot be read.
    """

    def __init__(self, config: AuthConfig) -> None:
        try:
            import jwt  # lazily: an optional extra
        except ImportError as error:
            raise ConfigError("auth.jwks: needs the extra: paceline-server[jwt]") from error
        self._jwt = jwt
        self._config = config
        self._keys = KeySet(
            config.jwks,
            self._parse,
            refresh_s=config.jwks_refresh_s,
            stale_s=config.jwks_stale_s,
        )

    async def caller(self, token: str) -> Caller | None:
        """Returns who a token names, or None where it is not to be believed."""
        try:
            key = await self._keys.key(self._jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise _RefusedError("unknown key")
            claims = self._jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._config.jwt_audience,
                issuer=self._config.jwt_issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._config.jwt_tenant_claim]},
            )
            return self._named(claims)
        except self._jwt.PyJWTError as error:
            reason = type(error).__name__
        except _RefusedError as error:
            reason = str(error)
        log.info("JWT refused", extra={"reason": reason})
        return None

    def _named(self, claims: dict[str, Any]) -> Caller:
        tenant = claims[self._config.jwt_tenant_claim]
        models = claims.get(self._config.jwt_models_claim)
        if not isinstance(tenant, str) or not tenant:
            raise _RefusedError("tenant claim")
        if models is not None and not isinstance(models, list):
            raise _RefusedError("models claim")
        return Caller(
            tenant=tenant,
            models=None if models is None else frozenset(map(str, models)),
            operator=self._operates(claims.get("scope")),
        )

    def _operates(self, scope: Any) -> bool:
        """Whether a scope, words in a text (RFC 8693) or a list of them, is an operator's."""
        words = scope.split() if isinstance(scope, str) else scope
        wanted = self._config.jwt_operator_scope
        return bool(wanted) and isinstance(words, list) and wanted in words

    def _parse(self, text: bytes) -> dict[str | None, Any]:
        try:
            listed = [key for key in json.loads(text)["keys"] if _verifies(key)]
            return {key.key_id: key for key in self._jwt.PyJWKSet(listed).keys}
        except (ValueError, KeyError, TypeError, RecursionError, self._jwt.PyJWTError) as error:
            raise ConfigError(f"auth.jwks: {self._config.jwks}: no key set: {error}") from error


class _RefusedError(Exception):
    """A JWT is not to be believed; the message says why, and nothing of what stands in it."""


def _verifies(key: Any) -> bool:
    """Whether a key is public and meant for signatures, or does not say (RFC 7517, 4.1 to 4.3)."""
    if not isinstance(key, dict) or key.get("kty") == "oct":
        return False
    return key.get("use", "sig") == "sig" and "verify" in key.get("key_ops", ("verify",))
