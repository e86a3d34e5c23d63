"""An authority that signs certificates for tests and for development: it has no way to revoke one."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

_SKEW = timedelta(days=1)
"""Clocks of other machines may be behind."""
_AUTHORITY_DAYS = 3_650


class Issued(NamedTuple):
    """A certificate and its key (PEM)."""

    certificate: bytes
    key: bytes


class DevelopmentAuthority:
    """See the module's docstring. Raises ValueError for what is no certificate of an authority, or not its key."""

    def __init__(self, issued: Issued) -> None:
        self.issued = issued
        self._certificate = x509.load_pem_x509_certificate(issued.certificate)
        key = load_pem_private_key(issued.key, None)
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise ValueError("the key is not that of the authority's certificate")
        self._key = key

    @property
    def expires_at(self) -> datetime:
        """The end of the validity of its own certificate."""
        return self._certificate.not_valid_after_utc

    @classmethod
    def create(cls, days: int = _AUTHORITY_DAYS) -> "DevelopmentAuthority":
        """Return a new authority whose own certificate is valid for some days."""
        # ZooKeeper keeps one authority of a name.
        key, name = generate_private_key(SECP256R1()), _name(f"Conveyor development authority {token_hex(4)}")
        builder = _builder(name, key, days).issuer_name(name)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(is_authority=True), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return cls(_issued(builder.add_extension(identifier, critical=False).sign(key, SHA256()), key))

    def issue_for_broker(self, hosts: Sequence[str], days: int) -> Issued:
        """Issue a certificate for a broker that clients reach by these names or addresses."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        return self._issue(hosts[0], days, [ExtendedKeyUsageOID.SERVER_AUTH], names)

    def issue_for_peer(self, hosts: Sequence[str], days: int) -> Issued:
        """Issue a certificate for the links of a broker that other brokers reach by these names or addresses."""
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(hosts[0], days, uses, names)

    def issue_for_client(self, user: str, days: int) -> Issued:
        """Issue a certificate for a client, whose user is `CN=user` unless rules say otherwise."""
        return self._issue(user, days, [ExtendedKeyUsageOID.CLIENT_AUTH])

    def _issue(
        self,
        common_name: str,
        days: int,
        uses: Sequence[x509.ObjectIdentifier],
        names: x509.SubjectAlternativeName | None = None,
    ) -> Issued:
        key = generate_private_key(SECP256R1())
        builder = _builder(_name(common_name), key, days).issuer_name(self._certificate.subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(is_authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return _issued(builder.sign(self._key, SHA256()), key)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(now + timedelta(days=days))


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issued(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> Issued:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(certificate.public_bytes(Encoding.PEM), private)
