"""A client's certificate names its user as Java does: the expected names are what X500Principal.getName() returns."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from conveyor.adapters.tls.client_names import ClientNames, distinguished_name
from conveyor.adapters.tls.tls_channel import TlsFailed
from conveyor.kernel.access.caller import ANONYMOUS

NAMES = ClientNames("DEFAULT")


def certificate(*parts: list[tuple[x509.ObjectIdentifier, str]], days: int = 1) -> bytes:
    """Return a certificate (DER) whose subject has these parts, each of one attribute or several."""
    attributes = [x509.RelativeDistinguishedName([x509.NameAttribute(*pair) for pair in part]) for part in parts]
    name, key, now = x509.Name(attributes), generate_private_key(SECP256R1()), datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1).not_valid_before(now)
    return builder.not_valid_after(now + timedelta(days=days)).sign(key, SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([[(NameOID.COMMON_NAME, "duke")]], "CN=duke"),
        ([[(NameOID.COUNTRY_NAME, "DE")], [(NameOID.COMMON_NAME, "duke")]], "CN=duke,C=DE"),
        ([[(NameOID.COMMON_NAME, "ü€😀")]], "CN=ü€😀"),
        ([[(NameOID.COMMON_NAME, " a  b ")]], r"CN=\ a  b\ "),
        ([[(NameOID.COMMON_NAME, "  ")]], r"CN=\ \ "),
        ([[(NameOID.COMMON_NAME, 'A, "B" + \\ ;<>#=')]], r"CN=A\, \"B\" \+ \\ \;\<\>\#\="),
        ([[(NameOID.COMMON_NAME, "b\0c")]], r"CN=b\00c"),
        ([[(NameOID.ORGANIZATION_NAME, "o"), (NameOID.COMMON_NAME, "n")]], "CN=n+O=o"),
        ([[(NameOID.EMAIL_ADDRESS, "a@b")]], "1.2.840.113549.1.9.1=#1603614062"),
        ([[(NameOID.TITLE, "title")], [(NameOID.GIVEN_NAME, "g")]], "2.5.4.42=#0c0167,2.5.4.12=#0c057469746c65"),
        (
            [
                [(NameOID.STREET_ADDRESS, "s")],
                [(NameOID.DOMAIN_COMPONENT, "dc")],
                [(NameOID.STATE_OR_PROVINCE_NAME, "st")],
                [(NameOID.LOCALITY_NAME, "l")],
                [(NameOID.ORGANIZATIONAL_UNIT_NAME, "ou")],
                [(NameOID.USER_ID, "uid")],
            ],
            "UID=uid,OU=ou,L=l,ST=st,DC=dc,STREET=s",
        ),
    ],
)
def test_name_is_javas(parts: list[list[tuple[x509.ObjectIdentifier, str]]], name: str) -> None:
    assert str(NAMES.principal(certificate(*parts))) == f"User:{name}"


def test_long_value_without_a_keyword_is_encoded_whole() -> None:
    title = "t" * 300
    name = x509.Name([x509.NameAttribute(NameOID.TITLE, title)])
    assert distinguished_name(name) == f"2.5.4.12=#0c82012c{title.encode().hex()}"


def test_client_without_a_certificate_is_anonymous() -> None:
    assert NAMES.principal(None) == ANONYMOUS


@pytest.mark.parametrize("rules", ["DEFAULT", "RULE:CN=x/y/"])
def test_certificate_that_names_nobody_is_refused(rules: str) -> None:
    with pytest.raises(TlsFailed, match="give no name to ''"):
        ClientNames(rules).principal(certificate())


def test_expired_certificate_is_refused() -> None:
    """A session that is resumed shows the certificate of its first handshake."""
    with pytest.raises(TlsFailed, match="has expired"):
        NAMES.principal(certificate([(NameOID.COMMON_NAME, "duke")], days=0))


def test_name_that_its_library_cannot_read_is_refused() -> None:
    """A string of bits, which no common name may be, is a TypeError of the library."""
    of_bits = certificate([(NameOID.COMMON_NAME, "\0uke")]).replace(b"\x0c\x04\0uke", b"\x03\x04\0uke")
    with pytest.raises(TlsFailed, match="cannot be read"):
        NAMES.principal(of_bits)


@pytest.mark.parametrize("char", ["\n", "\x1b", "\x7f", "\x85", "\u2028", "\u202e"])
def test_name_that_could_forge_a_line_of_a_log_is_refused(char: str) -> None:
    with pytest.raises(TlsFailed, match="at most 255 bytes of printable characters: 'CN=a"):
        NAMES.principal(certificate([(NameOID.COMMON_NAME, f"a{char}b")]))


def test_name_has_at_most_255_bytes() -> None:
    longest = "ü" * 126
    assert NAMES.principal(certificate([(NameOID.ORGANIZATIONAL_UNIT_NAME, longest)])).name == f"OU={longest}"
    with pytest.raises(TlsFailed, match="at most 255 bytes of printable characters: 'OU=ü"):
        NAMES.principal(certificate([(NameOID.ORGANIZATIONAL_UNIT_NAME, longest + "a")]))


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(TlsFailed, match="cannot be read"):
        NAMES.principal(b"\x30\x00")
