"""Clients who prove who they are by a token (JWT), which an identity provider has signed for them.

The keys that sign tokens come from a file or a URL, which the settings name. Keys that cannot be read, or not be used,
leave those from before in force. A token that names an unknown key makes the broker read the keys again, see
`KeyRefresh`. Source: RFC 7519, RFC 7517, KIP-768.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from conveyor.broker.clients.key_refresh import KeyRefresh
from conveyor.broker.clients.token_claims import TokenRefused, VerifiedToken, verified_token
from conveyor.broker.services import Services
from conveyor.kernel.errors import SettingsError

log = logging.getLogger(__name__)

MAX_TOKEN_BYTES = 16 << 10

_FILE_INTERVAL_MS, _URL_INTERVAL_MS = 2_000, 3_600_000


class UnknownKey(TokenRefused):
    """A token names a key that is not among the keys."""


class SigningKeys(Protocol):
    """The keys by which tokens are checked."""

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token with a right signature. Raises TokenRefused, UnknownKey."""


class KeySource(Protocol):
    """The place of the keys."""

    async def read(self) -> bytes:
        """Return the document with the keys. Raises OSError, ValueError."""

    def keys(self, document: bytes) -> SigningKeys:
        """Return the keys of a document. It may take long. Raises ValueError."""


class BearerTokens:
    """See the module's docstring. source: None if clients cannot log in by tokens."""

    def __init__(self, services: Services, source: KeySource | None) -> None:
        self.keys: SigningKeys | None = None
        """Those in force; other ones may not take tokens that these have taken."""
        self._services = services
        self._source = source
        self._document = b""
        interval_ms = _FILE_INTERVAL_MS if services.settings.sasl.jwks_file else _URL_INTERVAL_MS
        self._refresh = KeyRefresh(services.clock, self._attempt, interval_ms)

    @property
    def are_accepted(self) -> bool:
        """True if clients may log in by tokens."""
        return self._source is not None

    async def start(self) -> None:
        """Begin to read the keys. Raises SettingsError if they are in a file that cannot be used."""
        if self._source is None:
            return
        if self._services.settings.sasl.jwks_file:
            try:
                await self._load(self._source)
            except (OSError, ValueError) as error:
                raise SettingsError(f"the keys of tokens (sasl.jwks_file) cannot be used: {error}") from error
        self._services.tasks.start(self._refresh.run())

    async def verify(self, token: str) -> VerifiedToken:
        """Return whom a token names. Raises TokenRefused."""
        if len(token) > MAX_TOKEN_BYTES:
            raise TokenRefused(f"a token of {len(token)} bytes: it may have {MAX_TOKEN_BYTES}")
        try:
            return self._verified(token)
        except UnknownKey:
            if not await self._refresh.ask():
                raise
        return self._verified(token)

    def _verified(self, token: str) -> VerifiedToken:
        if self.keys is None:
            raise UnknownKey("a token, but the keys of tokens have not been read yet")
        return verified_token(self.keys.claims(token), self._services.settings.sasl, self._services.clock.now_ms())

    async def _attempt(self) -> bool:
        assert self._source is not None
        try:
            await self._load(self._source)
        except (OSError, ValueError) as error:
            log.log(self._refresh.pauses.log_level, "keys of tokens not loaded, those from before stay: %s", error)
            return False
        return True

    async def _load(self, source: KeySource) -> None:
        """Read the keys, and use them if they have changed. Raises OSError, ValueError."""
        document = await source.read()
        if document != self._document:
            loop, threads = asyncio.get_running_loop(), self._services.threads
            self.keys = await loop.run_in_executor(threads, source.keys, document)
            self._document = document
            log.info("keys of tokens loaded")
