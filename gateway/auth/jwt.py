"""Callers with a JWT, verified against a JSON Web Key Set (RFC 7519, RFC 7517) by PyJWT."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from gateway.auth.caller import Caller
from gateway.auth.config import AuthConfig

log = logging.getLogger(__name__)

# Public keys only: with a shared secret whoever can check a token can make one.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")

# An unknown key id has the set fetched anew, but no more often than this.
_LEAST_REFRESH_S = 10.0
_FETCH_TIMEOUT_S = 5.0
_LEEWAY_S = 10.0
_MOST_BYTES = 1 << 20


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
        self._keys: dict[str | None, Any] = {}
        self._refreshed = 0.0
        if not config.jwks.startswith("https://"):
            self._keys = self._parse(self._read())

    async def caller(self, token: str) -> Caller | None:
        """Returns who a token names, or None where it is not to be believed."""
        try:
            key = await self._key(self._jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return None
            claims = self._jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._config.jwt_audience,
                issuer=self._config.jwt_issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._config.jwt_tenant_claim]},
            )
        except self._jwt.PyJWTError as error:
            log.info("JWT refused", extra={"reason": type(error).__name__})
            return None
        return self._named(claims)

    def _named(self, claims: dict[str, Any]) -> Caller | None:
        tenant = claims[self._config.jwt_tenant_claim]
        models = claims.get(self._config.jwt_models_claim)
        if not isinstance(tenant, str) or not tenant:
            return None
        if models is not None and not isinstance(models, list):
            return None
        return Caller(tenant=tenant, models=None if models is None else frozenset(map(str, models)))

    async def _key(self, kid: str | None) -> Any:
        if kid not in self._keys and time.monotonic() >= self._refreshed + _LEAST_REFRESH_S:
            self._refreshed = time.monotonic()
            try:
                self._keys = self._parse(await asyncio.to_thread(self._read))
            except (ConfigError, OSError) as error:  # the last known keys stay in force
                log.warning("keys not fetched", extra={"reason": str(error)})
        return self._keys.get(kid)

    def _read(self) -> bytes:
        source = self._config.jwks
        try:
            if source.startswith("https://"):
                with urllib.request.urlopen(source, timeout=_FETCH_TIMEOUT_S) as answer:
                    if not answer.geturl().startswith("https://"):
                        raise ConfigError(f"auth.jwks: {source}: leads away from https")
                    return bytes(answer.read(_MOST_BYTES))
            return Path(source).read_bytes()
        except OSError as error:
            raise ConfigError(f"auth.jwks: {source}: {error}") from error

    def _parse(self, text: bytes) -> dict[str | None, Any]:
        try:
            keys = self._jwt.PyJWKSet.from_dict(json.loads(text)).keys
        except (ValueError, KeyError, TypeError, self._jwt.PyJWTError) as error:
            raise ConfigError(f"auth.jwks: {self._config.jwks}: no key set: {error}") from error
        return {key.key_id: key for key in keys}
