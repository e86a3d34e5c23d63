"""Names the user of a client's certificate. Loaded only if clients show certificates: its library takes 13 MiB."""

from datetime import UTC, datetime

from cryptography import x509

from conveyor.adapters.tls.principal_rules import parse_principal_rules
from conveyor.adapters.tls.tls_channel import TlsFailed
from conveyor.kernel.access.caller import ANONYMOUS, MAX_USER_BYTES, Principal, PrincipalType, is_user_name

_KEYWORDS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
"""Source: RFC 2253, 2.3."""
_ESCAPED = str.maketrans({char: f"\\{char}" for char in ',=+<>#;"\\'} | {"\0": "\\00"})


class ClientNames:
    """See the module's docstring. rules: see `principal_rules`. Raises SettingsError for a rule that is none."""

    def __init__(self, rules: str) -> None:
        self._rules = parse_principal_rules(rules)

    def principal(self, certificate: bytes | None) -> Principal:
        """Return the principal of the client that has shown a certificate (DER), or none. Raises TlsFailed."""
        if certificate is None:
            return ANONYMOUS
        try:
            shown = x509.load_der_x509_certificate(certificate)
            subject, end = distinguished_name(shown.subject), shown.not_valid_after_utc
        except (ValueError, TypeError) as error:
            raise TlsFailed(f"the certificate of the client cannot be read: {error}") from error
        if end < datetime.now(UTC):  # OpenSSL does not look again when a session is resumed.
            raise TlsFailed("the certificate of the client has expired")
        name = next((user for rule in self._rules if (user := rule(subject)) is not None), "")
        if not name:
            raise TlsFailed(f"tls.principal_rules give no name to {subject[:MAX_USER_BYTES]!r}")
        if not is_user_name(name):
            shown_name = name[:MAX_USER_BYTES]
            raise TlsFailed(f"a name has at most {MAX_USER_BYTES} bytes of printable characters: {shown_name!r}")
        return Principal(PrincipalType.USER, name)


def distinguished_name(name: x509.Name) -> str:
    """Return a name as Java writes it (RFC 2253), so that rules and ACLs for Kafka fit: the last part comes first."""
    return ",".join("+".join(map(_attribute, part)) for part in reversed(name.rdns))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword = _KEYWORDS.get(attribute.oid.dotted_string)
    if keyword is None or isinstance(attribute.value, bytes):
        return f"{attribute.oid.dotted_string}=#{_encoded_value(attribute).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _escaped(value: str) -> str:
    bare = value.strip(" ")
    start = len(value) - len(value.lstrip(" ")) if bare else len(value)
    end = len(value) - len(bare) - start
    return "\\ " * start + bare.translate(_ESCAPED) + "\\ " * end


def _encoded_value(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return the value's own encoding (DER): it follows the type in the only pair of a name."""
    pair = x509.Name([attribute]).public_bytes()
    for _ in ("sequence", "set", "sequence"):
        pair = _content(pair)
    return pair[2 + pair[1] :]


def _content(element: bytes) -> bytes:
    """Return the content of an element of DER."""
    length = element[1]
    return element[2:] if length < 0x80 else element[2 + length - 0x80 :]
