"""Certificate authorities for tests, made on the spot."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from common.tls_config import TlsConfig

_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for localhost and for workers.

    Args:
        name: Its common name.
        by: Who signs its own certificate; by default itself.
    """

    def __init__(self, name: str, by: Authority | None = None) -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = (by or self)._sign(self._name, self._key, authority=True)

    def issue(
        self, directory: Path, *, ca: Authority | None = None, key: _Key | None = None
    ) -> TlsConfig:
        """Writes a certificate, its key and the authority's certificate into a directory.

        Args:
            directory: Made where it is missing; what is there is written over.
            ca: Whose certificates are to be trusted; by default its own.
            key: The certificate's; by default a new one.
        """
        directory.mkdir(exist_ok=True)
        key = key or ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "worker")])
        certificate = self._sign(name, key, authority=False)
        pem = serialization.Encoding.PEM
        files = {
            "key.pem": key.private_bytes(
                pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            "cert.pem": certificate.public_bytes(pem),
            "ca.pem": (ca or self)._certificate.public_bytes(pem),
        }
        for file, content in files.items():
            fresh = directory / f"{file}.new"
            fresh.write_bytes(content)
            fresh.replace(directory / file)
        return TlsConfig(
            cert=directory / "cert.pem", key=directory / "key.pem", ca=directory / "ca.pem"
        )

    def _sign(self, name: x509.Name, key: _Key, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [
            x509.DNSName("localhost"),
            x509.DNSName("worker"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            # Python 3.13 asks for the next three, as RFC 5280 does.
            .add_extension(_usage(authority), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )


def _usage(authority: bool) -> x509.KeyUsage:
    """Signing certificates, or nothing but handshakes."""
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=not authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
