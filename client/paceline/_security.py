"""How a client proves who it is, and knows whom it talks to."""

import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from paceline._channel import is_loopback
from paceline.errors import ArgumentError

TOKEN_VARIABLE = "PACELINE_TOKEN"
CA_VARIABLE = "PACELINE_CA"
CERT_VARIABLE = "PACELINE_CERT"
KEY_VARIABLE = "PACELINE_KEY"
INSECURE_VARIABLE = "PACELINE_INSECURE"

_SYSTEM = "system"
_CERTIFICATE = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----.+?-----END ", re.DOTALL)
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

_File = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS to the gateway. Files are PEM, and are read when the client is made."""

    ca: _File | None = None
    """Authorities that the gateway's certificate may come from; None: those of gRPC."""
    cert: _File | None = None
    """The client's own certificate, for gateways that ask for one."""
    key: _File | None = None
    """Private key of `cert`, without a password."""
    server_name: str | None = None
    """Name that the gateway's certificate must bear; None: the address."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files.

        Raises:
            ArgumentError: One cannot be read or holds no certificate, the key is not the
                certificate's, or one of cert and key is missing.
        """
        if (self.cert is None) != (self.key is None):
            raise ArgumentError("tls", "cert and key go together")
        return grpc.ssl_channel_credentials(
            _certificates("ca", self.ca),
            certificate_chain=_certificates("cert", self.cert),
            private_key=_private_key(self.key, self.cert),
        )


class Security:
    """A client's token and TLS; what is not given comes from the environment.

    Args:
        address: The gateway.
        token: Bearer token, or what returns one for each call; white space around it is left out.
        tls: TLS; None where the environment names no authority: plaintext.
        insecure: Send a token in plaintext to another machine.

    Attributes:
        credentials: What a channel needs; None for plaintext.

    Raises:
        ArgumentError: A token cannot be sent, or would go to another machine in plaintext; or a
            certificate cannot be read.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        address: str,
        token: str | Callable[[], str] | None,
        tls: Tls | None,
        insecure: bool,
    ) -> None:
        if token is not None and not isinstance(token, str) and not callable(token):
            raise TypeError(f"token must be str or callable, got {type(token).__name__}")
        if tls is not None and not isinstance(tls, Tls):
            raise TypeError(f"tls must be paceline.Tls, got {type(tls).__name__}")
        self._token = token if callable(token) else _given_token(token)
        self._tls = tls or _tls_of_environment()
        insecure = insecure or _insecure_by_environment()
        if self._token and self._tls is None and not insecure and not is_loopback(address):
            raise ArgumentError(
                "token",
                f"would go to {address} in plaintext; give tls=paceline.Tls(...) or set "
                f"{CA_VARIABLE}, or say insecure=True where everybody on the way may have it",
            )
        self.credentials = self._tls and self._tls.credentials()

    @property
    def options(self) -> list[tuple[str, int | str]]:
        """Channel options."""
        if self._tls is None or self._tls.server_name is None:
            return []
        return [("grpc.ssl_target_name_override", self._tls.server_name)]

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call.

        Raises:
            ArgumentError: The function that was given for a token returned what cannot be sent.
        """
        token = _sendable("token()", self._token() or "") if callable(self._token) else self._token
        return (("authorization", f"Bearer {token}"),) if token else ()


def _given_token(token: str | None) -> str:
    """Returns the token given, else the environment's, else none."""
    if token is not None:
        return _sendable("token", token)
    return _sendable(TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, ""))


def _sendable(source: str, token: str) -> str:
    """Returns a token without white space around it; tells what is wrong, but never the token."""
    if not isinstance(token, str):
        raise TypeError(f"{source} must be str, got {type(token).__name__}")
    token = token.strip()
    for position, character in enumerate(token):
        if not (character.isascii() and character.isprintable()):
            raise ArgumentError(
                source, f"must be printable ASCII on one line, and is not at character {position}"
            )
    return token


def _tls_of_environment() -> Tls | None:
    ca = os.environ.get(CA_VARIABLE)
    if not ca:
        for name in (CERT_VARIABLE, KEY_VARIABLE):
            if os.environ.get(name):
                needed = f"needs {CA_VARIABLE}, a file of authorities or {_SYSTEM!r}"
                raise ArgumentError(name, needed)
        return None
    return Tls(
        ca=None if ca == _SYSTEM else ca,
        cert=os.environ.get(CERT_VARIABLE) or None,
        key=os.environ.get(KEY_VARIABLE) or None,
    )


def _insecure_by_environment() -> bool:
    said = os.environ.get(INSECURE_VARIABLE, "")
    if (word := said.strip().lower()) not in _YES + _NO:
        raise ArgumentError(
            INSECURE_VARIABLE,
            f"must be one of {', '.join(_YES)}, or one of {', '.join(_NO[1:])}, got {said!r}",
        )
    return word in _YES


def _certificates(name: str, file: _File | None) -> bytes | None:
    content = _read(name, file)
    if content is not None and not _CERTIFICATE.search(content):
        raise ArgumentError(
            f"tls.{name}",
            f"must hold a PEM certificate (-----BEGIN CERTIFICATE-----), but {file} holds none",
        )
    return content


def _private_key(file: _File | None, cert: _File | None) -> bytes | None:
    content = _read("key", file)
    if file is None or cert is None:
        return None
    if not _belong_together(cert, file):
        raise ArgumentError(
            "tls.key",
            f"must hold the private key of {cert} as PEM without a password, but {file} does not",
        )
    return content


def _belong_together(cert: _File, key: _File) -> bool:
    """Whether a key is the certificate's; gRPC would blame the other side for any other."""
    if not (Path(cert).is_file() and Path(key).is_file()):
        return True  # a pipe, as a shell's <(command), has been read by now
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")  # how strong a key must be is for gRPC to say
    try:
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError:
        return False
    return True


def _read(name: str, file: _File | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ArgumentError(f"tls.{name}", f"cannot be read: {error}") from error
