"""The server's side of a SCRAM exchange: two messages in, two out. Source: RFC 5802, 3 and 7.

    client first    n,[a=authzid],n=user,r=nonce            server first   r=nonce and ours,s=salt,i=iterations
    client final    c=channel binding,r=nonce,p=proof       server final   v=signature

Extensions (`,name=value`) are ignored, except those that ask for a delegation token. The last nonce may have something
before ours, as in Kafka: librdkafka before 2.6.1 repeats its own there. The proof covers all of it. Unknown users get
an answer too, and are refused at the end, so that nobody learns who exists.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable

from conveyor.kafka_api.wire.sasl.sasl_steps import Authenticated, Challenge, SaslFailed, Step, decoded, unescaped
from conveyor.kernel.access.scram import Proof, ScramCredential, ScramMechanism, is_proved, server_signature

Lookup = Callable[[str], tuple[ScramCredential, bool]]
"""Returns a user's credential, and whether the user exists; otherwise the credential is one that nobody knows."""

_FIRST = re.compile(
    r"(n|y|p=[A-Za-z0-9.-]+),(a=[^,]*)?,(m=[^,]*,)?n=([^,]+),r=([!-+\--~]+)((?:,[A-Za-z]+=[^,]+)*)", re.DOTALL
)
_FINAL = re.compile(r"c=([^,]*),r=([!-+\--~]+)(?:,[A-Za-z]+=[^,]+)*,p=([A-Za-z0-9+/=]+)", re.DOTALL)


class ScramExchange:
    """One exchange. nonce: this side's, of random printable characters without a comma."""

    def __init__(self, mechanism: ScramMechanism, lookup: Lookup, nonce: str) -> None:
        self._mechanism = mechanism
        self._lookup = lookup
        self._nonce = nonce
        self._user = ""
        self._credential: ScramCredential | None = None
        self._header = self._messages = ""

    def step(self, message: bytes) -> Step:
        """Process a message of the client. Raises SaslFailed."""
        text = decoded(message)
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> Challenge:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise SaslFailed("malformed first message of SCRAM")
        binding, identity, mandatory, name, nonce, extensions = found.groups()
        if binding.startswith("p") or mandatory or ",tokenauth=true" in extensions.lower():
            raise SaslFailed("SCRAM with channel binding, mandatory extensions or delegation tokens is not offered")
        self._user = unescaped(name)
        if identity and unescaped(identity[2:]) != self._user:
            raise SaslFailed("a user cannot act as another one")
        self._credential, _ = self._lookup(self._user)
        self._nonce = nonce + self._nonce
        self._header = text[: found.start(4) - 2]
        salt = b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{text[len(self._header) :]},{answer}"
        return Challenge(answer.encode())

    def _final(self, text: str, credential: ScramCredential) -> Authenticated:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise SaslFailed("malformed last message of SCRAM")
        binding, nonce, proof = found.groups()
        if not nonce.endswith(self._nonce) or _bytes(binding) != self._header.encode():
            raise SaslFailed("the last message of SCRAM does not continue the first")
        message = f"{self._messages},{text[: found.start(3) - 3]}".encode()
        is_right = is_proved(self._mechanism, credential, Proof(message, _bytes(proof)))
        if not is_right or self._lookup(self._user) != (credential, True):  # It may be another one by now.
            raise SaslFailed(f"wrong user or password, user={self._user!r}")
        signature = b64encode(server_signature(self._mechanism, credential, message))
        return Authenticated(self._user, b"v=" + signature)


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise SaslFailed("malformed base64 in SCRAM") from None
