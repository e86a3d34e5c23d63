"""Explains failures of TLS between brokers to an operator who has set up their certificates differently."""

from conveyor.adapters.tls.tls_channel import TlsFailed

_MEANINGS = {
    "peer did not return a certificate": ("the peer has shown no certificate, as if its tls.peer_cert_file is not set"),
    "alert certificate required": "the peer asks for a certificate, and tls.peer_cert_file is not set here",
    "certificate verify failed": (
        "this broker does not take the certificate of the peer, as if that is not signed by the authority in"
        " tls.peer_ca_file, or the peer's tls.peer_cert_file is not set"
    ),
    " alert ": (
        "the peer does not take the certificate of this broker, as if that is not signed by the authority in the peer's"
        " tls.peer_ca_file, or tls.peer_cert_file is not set here"
    ),
}
"""By a part of OpenSSL's reason. The first one that is found counts."""


def explained(failure: Exception) -> str:
    """Return a failure of a connection, and what it means if certificates do not fit."""
    text = str(failure)
    meaning = next((_MEANINGS[part] for part in _MEANINGS if part in text), "")
    return f"{meaning} ({text})" if meaning and isinstance(failure, TlsFailed) else text
