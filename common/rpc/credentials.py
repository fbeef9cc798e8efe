"""Certificates from files to gRPC, read again when the files change: rotation needs no restart.

A server asks at every handshake. A channel keeps the credentials it was made with, so those who
hold one for long ask `CertificateFiles.changed` when they connect again.
"""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from common.errors import StartupError
from common.tls_config import TlsConfig

log = logging.getLogger(__name__)

Signature = tuple[tuple[int, int], ...]


class CertificateFiles:
    """The files of one `TlsConfig`.

    Args:
        config: Names them.

    Raises:
        StartupError: One cannot be read.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        try:
            self._signature = _signature(config)
            for file in config.files:
                file.read_bytes()
        except OSError as error:
            raise StartupError(f"tls: {error.filename}: {error.strerror}") from error

    def changed(self) -> bool:
        """Whether the files are others than at the last call that said so."""
        try:
            signature = _signature(self._config)
        except OSError as error:  # between two versions
            log.warning("certificates cannot be read", extra={"reason": str(error)})
            return False
        if signature == self._signature:
            return False
        self._signature = signature
        return True

    def server(self) -> grpc.ServerCredentials:
        """Credentials of a server, which follow the files."""

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            if not self.changed():
                return None
            try:
                renewed = self._configuration()
            except OSError as error:
                log.warning("certificates cannot be read", extra={"reason": str(error)})
                return None
            log.info("certificates renewed")
            return renewed

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            fetch,  # type: ignore[arg-type]  # None means unchanged
            require_client_authentication=self._config.mutual,
        )

    def channel(self) -> grpc.ChannelCredentials:
        """Credentials of a channel, as the files are now."""
        config = self._config
        return grpc.ssl_channel_credentials(
            _read(config.ca), private_key=_read(config.key), certificate_chain=_read(config.cert)
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        assert self._config.key is not None
        assert self._config.cert is not None
        pair = (self._config.key.read_bytes(), self._config.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], _read(self._config.ca))


def _read(file: Path | None) -> bytes | None:
    return None if file is None else file.read_bytes()


def _signature(config: TlsConfig) -> Signature:
    """Tells versions of the files apart; follows links, which is how Kubernetes swaps secrets."""
    return tuple((stat.st_mtime_ns, stat.st_ino) for stat in (f.stat() for f in config.files))
