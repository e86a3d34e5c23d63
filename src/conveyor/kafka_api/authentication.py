"""The client of one connection proves who it is by SASL, before it may ask for anything else, and again later.

    SaslHandshake (mechanism) ---> SaslAuthenticate, once or more ---> all other requests, until the session expires
                 ^                                                                 |
                 '----------------- authentication again, between them ------------'

Before the proof a client may also ask for ApiVersions, and its requests are small. A refused client gets the same text
whatever the reason, after a pause, and is disconnected. A session lasts as long as the client's token, and at most for
`sasl.max_reauth_ms`; the client learns when it expires. From then on the client may authenticate again, by the same
mechanism and as the same user; any other request ends the connection. Source: KIP-43, KIP-152, KIP-368.
"""

from collections.abc import Callable
from functools import partial

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients.token_claims import TokenRefused
from conveyor.kafka_api.apis.cluster import k18_api_versions
from conveyor.kafka_api.apis.users import k17_sasl_handshake, k36_sasl_authenticate
from conveyor.kafka_api.apis.users.k17_sasl_handshake import ILLEGAL_SASL_STATE
from conveyor.kafka_api.wire.call import Handler, KafkaCall
from conveyor.kafka_api.wire.connection import KafkaConnection
from conveyor.kafka_api.wire.sasl.oauth_exchange import OauthExchange
from conveyor.kafka_api.wire.sasl.sasl_steps import (
    Authenticated,
    Challenge,
    ExchangeRefused,
    PasswordWanted,
    PlainExchange,
    SaslExchange,
    SaslFailed,
    TokenWanted,
)
from conveyor.kafka_api.wire.sasl.scram_exchange import ScramExchange
from conveyor.kernel.access.caller import Principal, PrincipalType
from conveyor.kernel.access.scram import ScramMechanism
from conveyor.kernel.alarm import Alarm
from conveyor.settings.sasl_settings import OAUTHBEARER, PLAIN

MAX_REQUEST_BYTES = 64 << 10
"""Of a client that has not proved who it is."""

GRACE_MS = 30_000
"""For so long after the end of a session, a client may log in again."""

MAX_SESSION_MS = (1 << 31) - 1
"""The longest session that expires, of 24 days: a token may be valid for longer."""

BEFORE_LOGIN: dict[int, Handler] = {
    17: k17_sasl_handshake.handle, 18: k18_api_versions.handle, 36: k36_sasl_authenticate.handle,
}  # fmt: skip
"""The requests that need no proof."""

_UNSUPPORTED_MECHANISM, _FAILED = 33, 58
_CHANGED_USER = "a session goes on as another user"


class Authentication:
    """See the module's docstring. It is the `Login` of a connection, to which it introduces itself.

    mechanisms: those that the broker's settings permit. authenticated: takes the principal of the client, each time
    that it has proved who it is. refused: called when the client is to be disconnected, after its response.
    """

    def __init__(
        self,
        broker: BrokerNode,
        connection: KafkaConnection,
        mechanisms: tuple[str, ...],
        authenticated: Callable[[Principal], None],
        refused: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._mechanisms = mechanisms
        self._authenticated = authenticated
        self._refused = refused
        self._mechanism = ""
        self._exchange: SaslExchange | None = None
        self._principal: Principal | None = None
        self._expiry = Alarm(broker.clock, self._expire)
        self._grace = Alarm(broker.clock, refused)
        self.handlers: dict[int, Handler] = {17: self._handshake, 36: self._authenticate}
        connection.require(self, BEFORE_LOGIN, MAX_REQUEST_BYTES)

    def _handshake(self, call: KafkaCall) -> None:
        mechanism = call.request.mechanism
        if self._exchange is not None:
            return self._refuse(call, ILLEGAL_SASL_STATE, "SaslHandshake comes once for each authentication")
        if mechanism not in self._mechanisms:
            reason = f"the mechanism is {mechanism[:64]!r}: {', '.join(self._mechanisms)} are offered"
            return self._refuse(call, _UNSUPPORTED_MECHANISM, reason)
        if self._principal is not None and mechanism != self._mechanism:
            reason = f"a session that began by {self._mechanism} goes on by {mechanism}"
            return self._refuse(call, ILLEGAL_SASL_STATE, reason)
        self._mechanism, self._exchange = mechanism, self._begin(mechanism)
        call.answer({"error_code": 0, "mechanisms": self._mechanisms})

    def _authenticate(self, call: KafkaCall) -> None:
        if self._exchange is None:
            return self._refuse(call, ILLEGAL_SASL_STATE, "SaslAuthenticate comes after SaslHandshake")
        if len(call.request.auth_bytes) > MAX_REQUEST_BYTES:  # Later requests of a client may be larger.
            return self._refuse(call, _FAILED, f"a message of {len(call.request.auth_bytes)} bytes")
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
                call.wait(call.start(self._check_password(call, user, password)).cancel)
            case TokenWanted():
                call.wait(call.start(self._check_token(call, step)).cancel)
            case ExchangeRefused():
                self._disconnect(call, _FAILED)

    def end(self) -> None:
        self._expiry.end()
        self._grace.end()

    def _expire(self) -> None:
        """End the session. A client that does not log in again soon is disconnected, whatever it waits for."""
        self._connection.expire(BEFORE_LOGIN)
        self._grace.after(GRACE_MS)

    def _begin(self, mechanism: str) -> SaslExchange:
        if mechanism == PLAIN:
            return PlainExchange()
        if mechanism == OAUTHBEARER:
            return OauthExchange()
        credentials, scram = self._broker.clients.credentials, ScramMechanism(mechanism)
        return ScramExchange(scram, partial(credentials.scram, scram), credentials.nonce())

    async def _check_password(self, call: KafkaCall, user: str, password: str) -> None:
        if await self._broker.clients.credentials.is_password(call.caller, user, password):
            self._accept(call, user, b"")
        else:
            self._refuse(call, _FAILED, f"wrong user or password, user={user!r}")

    async def _check_token(self, call: KafkaCall, wanted: TokenWanted) -> None:
        """Accept or refuse the user of a token. A client that is refused learns it, and has one more message."""
        exchange = self._exchange
        assert isinstance(exchange, OauthExchange)
        try:
            verified = await self._broker.clients.tokens.verify(wanted.token)
        except TokenRefused as refusal:
            await self._broker.clients.credentials.refuse(call.caller, self._mechanism, str(refusal))
            return _answer(call, exchange.refuse().message)
        if wanted.identity not in ("", verified.user):
            return self._refuse(call, _FAILED, "a user cannot act as another one")
        self._accept(call, verified.user, b"", verified.rest_ms(self._broker.clock.now_ms()))

    def _accept(self, call: KafkaCall, user: str, message: bytes, rest_ms: int = 0) -> None:
        """Begin a session, or go on with it. rest_ms: how long the proof is valid; 0 for no limit."""
        principal = Principal(PrincipalType.USER, user)
        if self._principal not in (None, principal):
            return self._refuse(call, _FAILED, f"{_CHANGED_USER}: {self._principal}, then {principal}")
        self._principal, self._exchange = principal, None
        self._grace.cancel()
        limits = filter(None, (rest_ms, self._broker.settings.sasl.max_reauth_ms))
        lifetime_ms = min(min(limits, default=0), MAX_SESSION_MS)
        if lifetime_ms:
            self._expiry.time_out(lifetime_ms)
        self._authenticated(principal)
        _answer(call, message, lifetime_ms)

    def _refuse(self, call: KafkaCall, error_code: int, reason: str) -> None:
        call.wait(call.start(self._refuse_later(call, error_code, reason)).cancel)

    async def _refuse_later(self, call: KafkaCall, error_code: int, reason: str) -> None:
        await self._broker.clients.credentials.refuse(call.caller, self._mechanism or "none", reason)
        self._disconnect(call, error_code)

    def _disconnect(self, call: KafkaCall, error_code: int) -> None:
        """Answer, and disconnect the client, which gets no second attempt on this connection."""
        self.end()  # The end of the session would permit another attempt.
        self._connection.refuse()
        if call.header.api_key == 17:
            call.answer({"error_code": error_code, "mechanisms": self._mechanisms})
        else:
            message = "Authentication failed: invalid credentials" if error_code == _FAILED else "Illegal SASL state"
            call.answer({"error_code": error_code, "error_message": message, "auth_bytes": b""})
        self._broker.partitions.tick.add_output(self._refused)


def _answer(call: KafkaCall, message: bytes, lifetime_ms: int = 0) -> None:
    call.answer({"error_code": 0, "error_message": None, "auth_bytes": message, "session_lifetime": lifetime_ms})
