"""Users who log in by a signature of each request (Signature Version 4).

The signature covers the body, so a request is verified when it is complete. Before, `claims` lets it pass: only for the
id of a key that exists, so that strangers cannot send large bodies.
"""

import re
from collections.abc import Mapping

from conveyor.broker.clients.credentials import Credentials
from conveyor.http.engine.exchange import Exchange
from conveyor.http.engine.http_request import Request
from conveyor.http_api.requests.access_keys import AccessKey
from conveyor.http_api.sqs.signing.canonical_request import SignedRequest
from conveyor.http_api.sqs.signing.signatures import verify_signature
from conveyor.http_api.sqs.sqs_errors import SqsError
from conveyor.kernel.access.caller import ANONYMOUS, Principal, PrincipalType
from conveyor.kernel.ports import Clock

_IN_HEADER = re.compile(r"AWS4-HMAC-SHA256 .{0,512}?Credential=([A-Za-z0-9_]{1,128})/")
_IN_TARGET = re.compile(rb"[?&]X-Amz-Credential=([A-Za-z0-9_]{1,128})(?:/|%2[fF])")


class SignedRequests:
    """See the module's docstring. keys: by access key id."""

    def __init__(self, keys: Mapping[str, AccessKey], credentials: Credentials, clock: Clock) -> None:
        self._keys = keys
        self._credentials = credentials
        self._clock = clock

    def claims(self, exchange: Exchange) -> bool:
        """Return whether a request of somebody unknown names an access key that exists."""
        return exchange.caller.principal == ANONYMOUS and key_id_of(exchange.request) in self._keys

    def verify(self, exchange: Exchange) -> Principal:
        """Return the user who has signed a complete request. Raises SqsError."""
        request = exchange.request
        signed = SignedRequest(
            method=request.method,
            target=request.target.decode("ascii"),
            headers=tuple(request.headers()),
            body=bytes(request.body),
        )
        key_id = verify_signature(signed, self._secret_of, self._clock.now_ms())
        return Principal(PrincipalType.USER, self._keys[key_id].user)

    async def refuse(self, exchange: Exchange, error: SqsError) -> None:
        """Count and log a wrong signature, and wait until the client may learn that it is wrong."""
        await self._credentials.refuse(exchange.caller, "AWS4-HMAC-SHA256", error.message)

    def _secret_of(self, key_id: str) -> str | None:
        key = self._keys.get(key_id)
        return None if key is None else key.secret


def key_id_of(request: Request) -> str | None:
    """Return the access key id that a request names; None if it has no signature."""
    header = request.header(b"authorization")
    if header is not None:
        named = _IN_HEADER.match(header)
        return None if named is None else named[1]
    found = _IN_TARGET.search(request.target)
    return None if found is None else found[1].decode()
