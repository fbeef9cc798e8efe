"""How callers are told apart, as configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.config_checks import at_least
from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AuthConfig:
    """Where tokens come from. With neither file nor keys everyone may call."""

    tokens: Path | None = None
    """YAML file of tenants: their limits at each gateway process, and SHA-256 hashes of their
    tokens; read again when it changes. `python -m gateway.auth` makes a token."""

    jwks: str = ""
    """File or https address of the keys that sign callers' JWTs (a JSON Web Key Set)."""

    jwks_refresh_s: float = 300.0
    """Seconds after which the keys at an address are fetched again; a file is looked at every
    second."""

    jwks_stale_s: float = 3600.0
    """Seconds for which the last keys count where they cannot be read again; then no JWT does."""

    jwt_issuer: str = ""
    """What a JWT's iss must be; required with `jwks`."""

    jwt_audience: str = ""
    """What a JWT's aud must name; required with `jwks`."""

    jwt_tenant_claim: str = "tenant"
    """Claim that names the tenant. Where `tokens` is set as well, a tenant has the limits that
    stand there, and one that does not stand there is refused."""

    jwt_models_claim: str = "models"
    """Claim that lists the models a caller may use; without it all."""

    jwt_operator_scope: str = ""
    """Word in the claim `scope` of operators of the fleet; empty: no JWT is one's."""

    def __post_init__(self) -> None:
        if self.jwks and not (self.jwt_issuer and self.jwt_audience):
            raise ConfigError("auth.jwks: needs auth.jwt_issuer and auth.jwt_audience")
        at_least(self, "auth.", jwks_refresh_s=1, jwks_stale_s=self.jwks_refresh_s)
        if self.jwks.startswith("http://"):
            raise ConfigError(f"auth.jwks: must be a file or an https address, got {self.jwks!r}")

    @property
    def required(self) -> bool:
        """Whether callers have to say who they are."""
        return self.tokens is not None or bool(self.jwks)
