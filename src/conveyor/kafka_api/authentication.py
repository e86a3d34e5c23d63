"""The client of one connection proves who it is by SASL, before it may ask for anything else.

    SaslHandshake (mechanism) ---> SaslAuthenticate, once or more ---> all other requests

Before the proof a client may also ask for ApiVersions, and its requests are small. A refused client gets the same text
whatever the reason, after a pause, and is disconnected. Source: KIP-43, KIP-152.
"""

from collections.abc import Callable
from functools import partial

from conveyor.broker.broker_node import BrokerNode
from conveyor.kafka_api.apis.cluster import k18_api_versions
from conveyor.kafka_api.apis.users.k17_sasl_handshake import ILLEGAL_SASL_STATE
from conveyor.kafka_api.wire.call import Handler, KafkaCall
from conveyor.kafka_api.wire.sasl.sasl_steps import (
    Authenticated,
    Challenge,
    PasswordWanted,
    PlainExchange,
    SaslExchange,
    SaslFailed,
)
from conveyor.kafka_api.wire.sasl.scram_exchange import ScramExchange
from conveyor.kernel.access.caller import Principal, PrincipalType
from conveyor.kernel.access.scram import ScramMechanism

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *ScramMechanism)
MAX_REQUEST_BYTES = 64 << 10
"""Of a client that has not proved who it is."""

_UNSUPPORTED_MECHANISM, _FAILED = 33, 58


class Authentication:
    """See the module's docstring.

    mechanisms: those that the broker's settings permit. authenticated: takes the principal of the client. refused:
    called when the client is to be disconnected, after its response.
    """

    def __init__(
        self,
        broker: BrokerNode,
        mechanisms: tuple[str, ...],
        authenticated: Callable[[Principal], None],
        refused: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._mechanisms = mechanisms
        self._authenticated = authenticated
        self._refused = refused
        self._mechanism = ""
        self._exchange: SaslExchange | None = None
        self.handlers: dict[int, Handler] = {
            17: self._handshake, 18: k18_api_versions.handle, 36: self._authenticate,
        }  # fmt: skip
        """What the client may ask for until it has proved who it is."""

    def _handshake(self, call: KafkaCall) -> None:
        mechanism = call.request.mechanism
        if self._exchange is not None:
            return self._refuse(call, ILLEGAL_SASL_STATE, "SaslHandshake comes once")
        if mechanism not in self._mechanisms:
            reason = f"the mechanism is {mechanism[:64]!r}: {', '.join(self._mechanisms)} are offered"
            return self._refuse(call, _UNSUPPORTED_MECHANISM, reason)
        self._mechanism, self._exchange = mechanism, self._begin(mechanism)
        call.answer({"error_code": 0, "mechanisms": self._mechanisms})

    def _begin(self, mechanism: str) -> SaslExchange:
        if mechanism == PLAIN:
            return PlainExchange()
        credentials, scram = self._broker.clients.credentials, ScramMechanism(mechanism)
        return ScramExchange(scram, partial(credentials.scram, scram), credentials.nonce())

    def _authenticate(self, call: KafkaCall) -> None:
        if self._exchange is None:
            return self._refuse(call, ILLEGAL_SASL_STATE, "SaslAuthenticate comes after SaslHandshake")
        try:
            step = self._exchange.step(call.request.auth_bytes)
        except SaslFailed as failure:
            return self._refuse(call, _FAILED, str(failure))
        match step:
            case Challenge(message):
                _answer(call, message)
            case Authenticated(user, message):
                self._accept(call, user, message)
            case PasswordWanted(user, password):
                call.wait(call.start(self._check(call, user, password)).cancel)

    async def _check(self, call: KafkaCall, user: str, password: str) -> None:
        if await self._broker.clients.credentials.is_password(call.caller, user, password):
            self._accept(call, user, b"")
        else:
            self._refuse(call, _FAILED, f"wrong user or password, user={user!r}")

    def _accept(self, call: KafkaCall, user: str, message: bytes) -> None:
        self._authenticated(Principal(PrincipalType.USER, user))
        _answer(call, message)

    def _refuse(self, call: KafkaCall, error_code: int, reason: str) -> None:
        call.wait(call.start(self._refuse_later(call, error_code, reason)).cancel)

    async def _refuse_later(self, call: KafkaCall, error_code: int, reason: str) -> None:
        await self._broker.clients.credentials.refuse(call.caller, self._mechanism or "none", reason)
        self.handlers.clear()  # The client gets no second attempt on this connection.
        if call.api_key == 17:
            call.answer({"error_code": error_code, "mechanisms": self._mechanisms})
        else:
            told = "Authentication failed: invalid credentials" if error_code == _FAILED else "Illegal SASL state"
            call.answer({"error_code": error_code, "error_message": told, "auth_bytes": b""})
        self._broker.partitions.tick.add_output(self._refused)


def _answer(call: KafkaCall, message: bytes) -> None:
    call.answer({"error_code": 0, "error_message": None, "auth_bytes": message})
