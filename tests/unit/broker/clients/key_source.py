"""The keys of tokens, which a test holds."""

import asyncio

from conveyor.adapters.tokens.signing_keys import SigningKeySet
from tests.identity_provider import key_set, signing_key

ONE = key_set(signing_key("ES256"))
"""The document with the public key of the identity provider."""


class Source:
    """A source of keys that the test holds. document: an error is raised. goes_on: cleared to let readers wait."""

    def __init__(self, document: bytes | OSError = ONE) -> None:
        self.document = document
        self.reads = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def read(self) -> bytes:
        self.reads += 1
        await self.goes_on.wait()
        if isinstance(self.document, OSError):
            raise self.document
        return self.document

    def keys(self, document: bytes) -> SigningKeySet:
        return SigningKeySet(document)
