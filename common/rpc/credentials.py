"""Certificates from files to gRPC, read again when the files change: rotation needs no restart.

A server asks at every handshake, on a thread of gRPC's. A channel keeps the credentials it was
made with, so those who hold one for long ask `CertificateFiles.renewed` when they connect again.
Files that cannot be read, a key that is not the certificate's or authorities that are cut short,
because a rotation is half-way, change nothing until they can be used.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from common.errors import StartupError
from common.tls_config import TlsConfig

log = logging.getLogger(__name__)

Signature = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Pems:
    """What the files hold; None for one that is not named."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None


class CertificateFiles:
    """The files of one `TlsConfig`.

    Args:
        config: Names them.

    Raises:
        StartupError: One cannot be read or used, or certificate and key do not belong together.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config, self._problem = config, ""  # of the files, as it was told last
        try:
            self._signature, self._pems = _read(config)
        except OSError as error:
            raise StartupError(f"tls: {error.filename}: {error.strerror}") from error

    def renewed(self) -> bool:
        """Takes over what the files hold now; returns whether that is anything new.

        It reads files: an event loop has a thread do it.
        """
        try:
            if _signature(self._config) == self._signature:
                return False
            signature, pems = _read(self._config)
        except (OSError, StartupError) as error:  # between two versions
            told, self._problem = self._problem, str(error)
            if self._problem != told:  # strangers shake hands as often as they like
                log.warning("certificates cannot be used", extra={"reason": self._problem})
            return False
        before = self._pems
        self._signature, self._pems, self._problem = signature, pems, ""
        return pems != before

    def server(self) -> grpc.ServerCredentials:
        """Credentials of a server, which follow the files."""

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            if not self.renewed():
                return None
            log.info("certificates renewed")
            return self._configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            fetch,  # type: ignore[arg-type]  # None means unchanged
            require_client_authentication=self._config.mutual,
        )

    def channel(self) -> grpc.ChannelCredentials:
        """Credentials of a channel, as the files were when last read."""
        pems = self._pems
        return grpc.ssl_channel_credentials(
            pems.ca, private_key=pems.key, certificate_chain=pems.cert
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pems = self._pems
        assert pems.key is not None
        assert pems.cert is not None
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)


def _read(config: TlsConfig) -> tuple[Signature, _Pems]:
    signature = _signature(config)  # first: what changes meanwhile is then found to have changed
    cert, key, ca = (
        None if file is None else file.read_bytes() for file in (config.cert, config.key, config.ca)
    )
    if config.cert is not None:
        _check_pair(config.cert, config.key)
    if config.ca is not None:
        _check_authorities(config.ca)
    return signature, _Pems(cert, key, ca)


def _check_pair(cert: Path, key: Path | None) -> None:
    pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        pair.load_cert_chain(cert, key, password="")  # or it asks for one
    except ssl.SSLError as error:
        raise StartupError(f"tls: {cert} and {key} cannot be used together: {error}") from error


def _check_authorities(ca: Path) -> None:
    authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        authorities.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise StartupError(f"tls: {ca} cannot be used: {error}") from error
    if not authorities.cert_store_stats()["x509"]:  # else lists of revoked ones pass
        raise StartupError(f"tls: {ca} cannot be used: it holds no certificate")


def _signature(config: TlsConfig) -> Signature:
    """Tells versions of the files apart; follows links, which is how Kubernetes swaps secrets."""
    return tuple((stat.st_mtime_ns, stat.st_ino) for stat in (f.stat() for f in config.files))
