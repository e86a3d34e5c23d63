"""Users who log in by a bearer token (JWT), with each request. Source: RFC 6750.

A token that was right is remembered until it ends, or the keys that sign tokens change.
"""

from collections import OrderedDict

from conveyor.broker.clients.bearer_tokens import SigningKeys
from conveyor.broker.clients.clients import Clients
from conveyor.broker.clients.token_claims import TokenRefused, VerifiedToken
from conveyor.kernel.access.caller import Caller, Principal, PrincipalType
from conveyor.kernel.ports import Clock

_MAX_KNOWN = 1_000


class TokenLogins:
    """See the module's docstring. A token is remembered by its digest, which the caller makes."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._credentials, self._tokens, self._clock = clients.credentials, clients.tokens, clock
        self._known: OrderedDict[bytes, tuple[VerifiedToken, SigningKeys | None]] = OrderedDict()

    @property
    def are_accepted(self) -> bool:
        return self._tokens.are_accepted

    def known(self, digest: bytes) -> Principal | None:
        """Return the user of a token that was right before; None if it has to be checked."""
        found = self._known.get(digest)
        if found is None:
            return None
        verified, keys = found
        if keys is not self._tokens.keys or verified.ends_ms <= self._clock.now_ms():
            del self._known[digest]
            return None
        return Principal(PrincipalType.USER, verified.user)

    async def check(self, token: str, digest: bytes, caller: Caller) -> Principal | None:
        """Return the user of a token; None, after a pause, if it is refused."""
        try:
            verified = await self._tokens.verify(token)
        except TokenRefused as refusal:
            await self._credentials.refuse(caller, "Bearer", str(refusal))
            return None
        self._known[digest] = verified, self._tokens.keys
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return Principal(PrincipalType.USER, verified.user)


def bearer_token(header: str) -> str | None:
    """Return the token of a header (Authorization); None if it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
