"""The cases by which Kafka tests its own server of SCRAM, and what is meant to differ here.

The names, extensions and reserved values are those of Kafka 4.3's ScramFormatterTest, ScramMessagesTest and
ScramSaslServerTest; the example of the RFC is in `test_scram_exchange`. What Kafka tests of clients has no counterpart.
"""

from base64 import b64encode

import pytest

from conveyor.kafka_api.wire.sasl.sasl_steps import Authenticated, Challenge, SaslFailed
from conveyor.kafka_api.wire.sasl.scram_exchange import ScramExchange
from conveyor.kernel.access.scram import MIN_ITERATIONS, ScramMechanism, credential_of, salted_password
from tests.unit.kafka_api.wire.sasl.scram_proof import proof

MECHANISM = ScramMechanism.SHA_256
CREDENTIAL = credential_of(
    MECHANISM, b"salt", salted_password(MECHANISM, "secret", b"salt", MIN_ITERATIONS), MIN_ITERATIONS
)
NAMES = ("user1", "123", "1,2", "user=A", "user==B", "user,1", "user 1", ",", "=", ",=", "==")
GOOD_EXTENSIONS = (
    "ext=val1",
    "anotherext=name1=value1 name2=another test value \"'!$[]()",
    "first=val1,second=name1 = value ,third=123",
)
BAD_EXTENSIONS = ("ext1=value", "ext", "ext=value1,value2", "ext=,", "ext =value")
BAD_RESERVED = ("m", "m=name,value", "m=,")
GOOD_RESERVED = ("m=reserved-value", "m=name1=value1 name2=another test value \"'!$[]()")


def login(name: str, between: str = "", *, identity: str = "", extensions: str = "", at_the_end: str = "") -> str:
    """Log in as a client whose password is right. Returns the user. Raises SaslFailed.

    name: as it is sent. between: after the header. extensions: of the first message; at_the_end: of the last.
    """
    server = ScramExchange(MECHANISM, lambda _: (CREDENTIAL, True), "server")
    header, first_bare = f"n,{identity},", f"{between}n={name},r=client{extensions}"
    challenge = server.step((header + first_bare).encode())
    assert isinstance(challenge, Challenge)
    final = f"c={b64encode(header.encode()).decode()},r=clientserver{at_the_end}"
    proved = proof(MECHANISM, "secret", first_bare, challenge.message.decode(), final)
    done = server.step(f"{final},p={proved}".encode())
    assert isinstance(done, Authenticated)
    return done.user


@pytest.mark.parametrize("name", NAMES)
def test_names_are_escaped(name: str) -> None:
    assert login(name.replace("=", "=3D").replace(",", "=2C")) == name


@pytest.mark.parametrize("identity", ["", "a=userA"])
def test_identity_may_be_that_of_the_user(identity: str) -> None:
    assert login("userA", identity=identity) == "userA"


@pytest.mark.parametrize("identity", ["a=userB", "x=something"])
def test_other_identity_is_refused(identity: str) -> None:
    with pytest.raises(SaslFailed):
        login("userA", identity=identity)


@pytest.mark.parametrize("extensions", GOOD_EXTENSIONS)
def test_extensions_are_ignored(extensions: str) -> None:
    assert login("user", extensions=f",{extensions}", at_the_end=f",{extensions}") == "user"


@pytest.mark.parametrize("extensions", BAD_EXTENSIONS)
def test_malformed_extensions_are_refused(extensions: str) -> None:
    with pytest.raises(SaslFailed, match="malformed first message"):
        login("user", extensions=f",{extensions}")
    with pytest.raises(SaslFailed, match="malformed last message"):
        login("user", at_the_end=f",{extensions}")


@pytest.mark.parametrize("reserved", [*BAD_RESERVED, *GOOD_RESERVED])
def test_reserved_value_is_refused(reserved: str) -> None:
    """Kafka ignores well-formed ones. RFC 5802, 5.1, demands that the login fails: a client that sends one relies on
    something that the server does not know.
    """
    with pytest.raises(SaslFailed):
        login("user", f"{reserved},")


def test_token_of_a_delegation_is_refused() -> None:
    with pytest.raises(SaslFailed, match="delegation tokens"):
        login("user", extensions=",tokenauth=true")


@pytest.mark.parametrize("field", ["c=ab,r=clientserver,p=AAAA", "c=biws,r=clientserver,p=123"])
def test_base64_without_its_end_is_refused(field: str) -> None:
    server = ScramExchange(MECHANISM, lambda _: (CREDENTIAL, True), "server")
    server.step(b"n,,n=user,r=client")
    with pytest.raises(SaslFailed):
        server.step(field.encode())
