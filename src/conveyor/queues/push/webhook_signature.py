"""Signatures of requests, and the secrets that make them. Source: Standard Webhooks 1.0.

webhook-id          of the message; the same at each attempt
webhook-timestamp   of the attempt: seconds since 1970
webhook-signature   v1,<base64 of HMAC-SHA256(secret, id.timestamp.body)>; one for each secret, separated by spaces
"""

import hmac
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Sequence

from conveyor.kernel.errors import ErrorKind, RequestError

PREFIX = "whsec_"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
MAX_SECRET_CHARACTERS = len(PREFIX) + 4 * ((MAX_SECRET_BYTES + 2) // 3)


def webhook_headers(
    message_id: str, timestamp_s: int, body: bytes, secrets: Sequence[bytes]
) -> tuple[tuple[str, str], ...]:
    """Return the headers of a request with this body."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp_s, body)
    signatures = [b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets]
    return (
        ("webhook-id", message_id),
        ("webhook-timestamp", str(timestamp_s)),
        ("webhook-signature", " ".join(f"v1,{signature}" for signature in signatures)),
    )


def secret_text(secret: bytes) -> str:
    """Return a secret as receivers are given it."""
    return PREFIX + b64encode(secret).decode()


def parse_secret(text: str) -> bytes:
    """Return the bytes of a secret. Raises RequestError (INVALID_SUBSCRIPTION), which does not repeat the text."""
    try:
        secret = b64decode(text.removeprefix(PREFIX), validate=True)
    except (BinasciiError, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise RequestError(
            ErrorKind.INVALID_SUBSCRIPTION,
            f"push.secret must be {PREFIX} and the base64 of {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes",
        ) from None
    return secret
