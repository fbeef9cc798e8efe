"""JWTs: believed only with the right key, claims and time; limits come from the token file."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from common.errors import ConfigError, Unauthenticated
from gateway.auth import key_set
from gateway.auth.authenticator import Authenticator
from gateway.auth.caller import Caller, Limits
from gateway.auth.config import AuthConfig
from gateway.auth.jwt import JwtVerifier

KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("one", "two")}


def keys_of(*names: str) -> str:
    keys = []
    for name in names:
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEYS[name].public_key()))
        keys.append({**public, "kid": name, "use": "sig"})
    return json.dumps({"keys": keys})


def signed(by: str = "one", kid: str | None = None, **claims: Any) -> str:
    now = time.time()
    whole = {"iss": "us", "aud": "paceline", "exp": now + 60, "tenant": "acme", **claims}
    whole = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(whole, KEYS[by], algorithm="ES256", headers={"kid": kid or by})


@pytest.fixture
def config(tmp_path: Path) -> AuthConfig:
    (tmp_path / "keys.json").write_text(keys_of("one"))
    return AuthConfig(jwks=str(tmp_path / "keys.json"), jwt_issuer="us", jwt_audience="paceline")


@pytest.fixture
def both(config: AuthConfig, tmp_path: Path) -> AuthConfig:
    file = tmp_path / "tokens.yaml"
    file.write_text("tenants: {acme: {models: [a, b], max_concurrent: 3}}")
    return replace(config, tokens=file)


async def identified(authenticator: Authenticator, token: str) -> Caller | None:
    try:
        return await authenticator.identify([("authorization", f"Bearer {token}")])
    except Unauthenticated:
        return None


async def test_a_good_one_names_tenant_and_models(config: AuthConfig) -> None:
    authenticator = Authenticator(config)
    assert await identified(authenticator, signed()) == Caller(tenant="acme")
    narrow = await identified(authenticator, signed(models=["a"]))
    assert narrow is not None
    assert narrow.models == {"a"}


@pytest.mark.parametrize(
    "other",
    [
        {"by": "two"},
        {"by": "two", "kid": "one"},
        {"exp": 1},
        {"exp": None},
        {"iss": "them"},
        {"aud": "others"},
        {"tenant": None},
        {"tenant": ""},
        {"tenant": 7},
        {"models": "a"},
    ],
)
async def test_bad_ones_are_nobody(config: AuthConfig, other: dict[str, Any]) -> None:
    authenticator = Authenticator(config)
    assert await identified(authenticator, signed()) is not None
    assert await identified(authenticator, signed(**other)) is None


async def test_what_nobody_of_ours_signed_is_nobody(config: AuthConfig) -> None:
    whole = {"iss": "us", "aud": "paceline", "exp": time.time() + 60, "tenant": "acme"}
    by_secret = jwt.encode(whole, "x" * 32, algorithm="HS256", headers={"kid": "one"})
    authenticator = Authenticator(config)
    for token in ("a.b.c", "", jwt.encode(whole, "", algorithm="none"), by_secret):
        assert await identified(authenticator, token) is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"aud": "others"}, "InvalidAudienceError"),
        ({"by": "two"}, "unknown key"),
        ({"tenant": 7}, "tenant claim"),
        ({"models": "a"}, "models claim"),
        ({"tenant": "stranger"}, "unknown tenant"),
    ],
)
async def test_why_one_is_refused_is_a_line_without_its_words(
    both: AuthConfig, other: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert await identified(Authenticator(both), signed(**other)) is None
    (line,) = caplog.records
    assert (line.levelname, line.message, line.reason) == ("INFO", "JWT refused", reason)
    assert "stranger" not in str(vars(line))


async def test_keys_come_and_go(config: AuthConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_set, "_FILE_AGE_S", 0.0)
    authenticator = Authenticator(config)
    keys = Path(config.jwks)
    assert await identified(authenticator, signed()) is not None
    keys.write_text(keys_of("two"))  # noqa: ASYNC240
    assert await identified(authenticator, signed(by="two")) is not None
    assert await identified(authenticator, signed()) is None, "revoked"
    keys.write_text("garbage")  # noqa: ASYNC240
    assert await identified(authenticator, signed(kid="nobody")) is None
    assert await identified(authenticator, signed(by="two")) is not None


@pytest.mark.parametrize("purpose", [{"use": "enc"}, {"key_ops": ["encrypt"]}])
async def test_a_key_that_is_not_for_signatures_is_none(
    config: AuthConfig, purpose: dict[str, Any]
) -> None:
    listed = json.loads(keys_of("one", "two"))["keys"]
    listed[0] = {key: value for key, value in listed[0].items() if key != "use"} | purpose
    Path(config.jwks).write_text(json.dumps({"keys": listed}))  # noqa: ASYNC240
    authenticator = Authenticator(config)
    assert await identified(authenticator, signed()) is None
    assert await identified(authenticator, signed(by="two")) is not None


def test_a_shared_secret_is_no_key(config: AuthConfig) -> None:
    secret = {"kty": "oct", "kid": "two", "k": "c2VjcmV0" * 6}
    listed = [*json.loads(keys_of("one"))["keys"], secret]
    keys = JwtVerifier(config)._parse(json.dumps({"keys": listed}).encode())
    assert set(keys) == {"one"}


async def test_the_token_file_limits_tenants_and_names_all_of_them(both: AuthConfig) -> None:
    authenticator = Authenticator(both)
    caller = await identified(authenticator, signed(models=["b", "c"]))
    assert caller == Caller(tenant="acme", models=frozenset("b"), limits=Limits(max_concurrent=3))
    assert await identified(authenticator, signed(tenant="stranger")) is None


def test_what_cannot_be_configured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auth.jwks: needs"):
        AuthConfig(jwks="keys.json")
    named = {"jwt_issuer": "us", "jwt_audience": "paceline"}
    with pytest.raises(ConfigError, match=r"jwks_stale_s: must be at least 300"):
        AuthConfig(jwks="https://keys", jwks_stale_s=10, **named)
    with pytest.raises(ConfigError, match="https"):
        AuthConfig(jwks="http://keys", **named)
    for text in ("[]", '{"keys": [7]}', '{"keys": 7}', "[" * 100_000):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(ConfigError, match="no key set"):
            Authenticator(AuthConfig(jwks=str(tmp_path / "odd.json"), **named))
    with pytest.raises(ConfigError, match="No such file"):
        Authenticator(AuthConfig(jwks=str(tmp_path / "none"), **named))
    (tmp_path / "bad").write_text("{}")
    with pytest.raises(ConfigError, match="no key set"):
        Authenticator(AuthConfig(jwks=str(tmp_path / "bad"), **named))
    os.utime(tmp_path / "bad")
