"""The server of SCRAM: the example of the RFC, exchanges with a client of the test itself, and hostile messages."""

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kafka_api.wire.sasl.sasl_steps import Authenticated, Challenge, SaslFailed
from conveyor.kafka_api.wire.sasl.scram_exchange import ScramExchange
from conveyor.kernel.access.scram import (
    ScramCredential,
    ScramMechanism,
    credential_of,
    is_password,
    salted_password,
)
from tests.unit.kafka_api.wire.sasl.scram_proof import proof

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SHA_256 = ScramMechanism.SHA_256
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()


def credential(password: str = "pencil", mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    return credential_of(mechanism, SALT, salted_password(mechanism, password, SALT, 4096), 4096)


PENCIL = credential()
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
"""HMAC pads keys with zeros, so a password is as good as with zeros behind it."""


def exchange(held: ScramCredential = PENCIL, *, is_known: bool = True) -> ScramExchange:
    return ScramExchange(SHA_256, lambda _: (held, is_known), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")


def test_example_of_the_rfc() -> None:
    """RFC 7677, 3."""
    server = exchange()
    assert server.step(FIRST) == Challenge(f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    assert server.step(FINAL) == Authenticated("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_unknown_user_is_refused_at_the_end() -> None:
    """Also with a proof that would be right."""
    server = exchange(is_known=False)
    assert isinstance(server.step(FIRST), Challenge)
    with pytest.raises(SaslFailed, match="wrong user or password"):
        server.step(FINAL)


@pytest.mark.parametrize("is_removed", [True, False])
def test_credential_that_changes_during_the_exchange_is_no_proof(is_removed: bool) -> None:
    """Somebody may keep a login half-way open until the operator has removed the user."""
    held = [(PENCIL, True)]
    server = ScramExchange(SHA_256, lambda _: held[-1], "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    server.step(FIRST)
    held.append((PENCIL, False) if is_removed else (credential("other"), True))
    with pytest.raises(SaslFailed, match="wrong user or password"):
        server.step(FINAL)


@given(
    user=st.text(CHARACTERS, min_size=1, max_size=20),
    password=st.text(CHARACTERS, min_size=1, max_size=20),
    guess=st.text(CHARACTERS, max_size=20) | st.none(),
    mechanism=st.sampled_from(ScramMechanism),
    header=st.sampled_from(["n,,", "y,,"]),
    repeated=st.sampled_from(["", "client"]),
)
def test_only_the_password_is_a_proof(
    user: str, password: str, guess: str | None, mechanism: ScramMechanism, header: str, repeated: str
) -> None:
    """Names and passwords are as they are sent, whatever characters they have. librdkafka before 2.6.1 repeats its
    nonce in the last message.
    """
    seen: list[str] = []

    def lookup(name: str) -> tuple[ScramCredential, bool]:
        seen.append(name)
        return credential(password, mechanism), True

    server = ScramExchange(mechanism, lookup, "server")
    first_bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=client"
    step = server.step((header + first_bare).encode())
    assert isinstance(step, Challenge)
    answer = step.message.decode()
    final = f"c={b64encode(header.encode()).decode()},r={repeated}clientserver"
    guessed = password if guess is None else guess
    sent = f"{final},p={proof(mechanism, guessed, first_bare, answer, final)}".encode()
    if guessed == password:
        assert isinstance(outcome := server.step(sent), Authenticated)
        assert outcome.user == user
    else:
        with pytest.raises(SaslFailed):
            server.step(sent)
    assert set(seen) == {user}
    assert is_password(mechanism, credential(password, mechanism), guessed) == (guessed == password)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=user",
        b"n,,r=nonce,n=user",
        b"n,,n=,r=nonce",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=nonce",
        b"n,,n=us=2cer,r=nonce",
        b"n,,n=user,r=non ce",
        b"n,,n=user,r=non\x7fce",
        b"x,,n=user,r=nonce",
        b"n,a=other,n=user,r=nonce",
        b"p=tls-unique,,n=user,r=nonce",
        b"n,,m=x,n=user,r=nonce",
        b"n,,n=user,r=nonce,tokenauth=true",
        b"n,,n=user,r=nonce,ext=value,TokenAuth=True",
        b"n,,n=\xff,r=nonce",
        b"n,,n=user,r=nonce\n",
        FINAL,
    ],
)
def test_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(SaslFailed):
        exchange().step(message)


@pytest.mark.parametrize("identity", [b"", b"a=user"])
def test_user_may_be_named_twice(identity: bytes) -> None:
    assert isinstance(exchange().step(b"n," + identity + b",n=user,r=x"), Challenge)


@pytest.mark.parametrize(
    ("found", "replaced"),
    [
        ("c=biws", "c=eSws"),  # "y,,": the header of the first message was changed on the way
        ("c=biws", "c="),
        ("c=biws", "c=***"),
        ("r=rOpr", "r=rOpx"),
        ("hNlF$k0,p=", "hNlF$k,p="),
        (f"r={NONCE}", "r=rOprNGfwEbeRWgbNEkqO"),
        (",p=dHzb", ",x=y,p=dHzb"),
        ("p=dHzb", "p=dHzc"),
        ("dVQ=", "dVQ"),
        ("p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "p=dHzb"),
        ("p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "p="),
    ],
)
def test_changed_last_message_is_refused(found: str, replaced: str) -> None:
    server = exchange()
    server.step(FIRST)
    changed = FINAL.decode().replace(found, replaced)
    assert changed != FINAL.decode()
    with pytest.raises(SaslFailed):
        server.step(changed.encode())


@given(st.lists(st.binary(max_size=60) | st.sampled_from([FIRST, FINAL]), max_size=3))
def test_any_bytes_are_a_step_or_a_failure(messages: list[bytes]) -> None:
    server = exchange(credential("other"))
    for message in messages:
        try:
            assert isinstance(server.step(message), Challenge)
        except SaslFailed:
            return


def test_credential_shows_no_secret() -> None:
    assert repr(PENCIL) == "ScramCredential(iterations=4096)"
