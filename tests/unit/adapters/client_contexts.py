"""Clients of TLS that are no brokers."""

import ssl


def client_context() -> ssl.SSLContext:
    """Return a context that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def context_of_older_tls() -> ssl.SSLContext:
    """Return a context that speaks TLS 1.2 at most."""
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context
