"""HTTP clients log in as users, by Basic; by a token or a certificate as well."""

import ssl
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from conveyor.testing import Broker
from tests.certificates import Certificates
from tests.clients.rest_client import Answer, Rest

SHA_512 = ScramMechanism.SCRAM_SHA_512


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def set_password(broker: Broker, user: str, password: str | None) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    change = (
        UserScramCredentialDeletion(user, SHA_512)
        if password is None
        else UserScramCredentialUpsertion(user, ScramCredentialInfo(SHA_512, 4096), password.encode())
    )
    admin.alter_user_scram_credentials([change])[user].result(10)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a broker with the user alice, whose password is `pass:wörd`, and one token."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("a-token\n")
    settings = {"network.http_users": True, "network.token_file": str(tokens)}
    with Broker(memory=True, settings=settings) as broker:
        set_password(broker, "alice", "pass:wörd")
        yield broker


@pytest.fixture
def rest(guarded: Broker) -> Iterator[Rest]:
    client = Rest(guarded)
    yield client
    client.close()


ALICE, BEARER = basic("alice", "pass:wörd"), {"Authorization": "Bearer a-token"}


def topics(rest: Rest, headers: dict[str, str]) -> Answer:
    return rest.ask("GET", "/topics", headers=headers)


def test_user_with_the_password_is_let_in(rest: Rest) -> None:
    for _ in range(3):
        assert topics(rest, ALICE).status == 200
    large = rest.ask("POST", "/topics/large/messages", bytes(600_000), headers=ALICE)
    assert large.status == 201


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("alice", "wrong"),
        basic("eve", "pass:wörd"),
        {"Authorization": "Basic"},
        {"Authorization": "Basic ***"},
        {"Authorization": "Basic " + b64encode(b"alice").decode()},
        {"Authorization": "Basic " + b64encode(b"\xff:x").decode()},
        {"Authorization": "Bearer another-token"},
    ],
)
def test_anybody_else_is_refused(rest: Rest, headers: dict[str, str]) -> None:
    for path in ("/topics", "/metrics", "/dlq"):
        answer = rest.ask("GET", path, headers=headers)
        assert answer.problem[:2] == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="conveyor", charset="UTF-8"'
    assert rest.get("/healthz").status == 200


def test_token_is_enough(rest: Rest) -> None:
    assert topics(rest, {"Authorization": "Bearer a-token"}).status == 200


def test_former_password_is_refused_at_once(rest: Rest, guarded: Broker) -> None:
    set_password(guarded, "bob", "one")
    assert topics(rest, basic("bob", "one")).status == 200
    set_password(guarded, "bob", "two")
    assert topics(rest, basic("bob", "one")).status == 401
    assert topics(rest, basic("bob", "two")).status == 200
    set_password(guarded, "bob", None)
    assert topics(rest, basic("bob", "two")).status == 401


def test_user_who_is_removed_waits_for_nothing(guarded: Broker, rest: Rest) -> None:
    set_password(guarded, "carol", "one")
    carol, waiting = basic("carol", "one"), Rest(guarded)
    rest.ask("POST", "/topics/news/messages", b"old", headers=ALICE)
    rest.ask("POST", "/topics/news/subscriptions", {"name": "news-s"}, headers=ALICE)
    assert waiting.ask("GET", "/subscriptions/news-s/messages", headers=carol).json == {"messages": []}
    waiting.send("GET", "/subscriptions/news-s/messages?wait=20s", headers=carol)
    set_password(guarded, "carol", None)
    with pytest.raises(ConnectionError):
        waiting.receive()
    waiting.close()
    rest.ask("POST", "/topics/news/messages", b"new", headers=ALICE)
    leased = rest.ask("GET", "/subscriptions/news-s/messages", query={"wait": "20s"}, headers=ALICE)
    assert [message["payload"] for message in leased.json["messages"]] == ["new"]


def test_work_of_a_user_who_is_removed_ends(guarded: Broker, rest: Rest) -> None:
    set_password(guarded, "dave", "one")
    dave, working = basic("dave", "one"), Rest(guarded)
    rest.ask("POST", "/topics/parts/messages", b"", headers=ALICE)
    rest.ask("POST", "/topics/parts/subscriptions", {"name": "parts-s"}, headers=ALICE)
    for number in range(20):
        rest.ask("POST", "/topics/parts/messages", b"%d" % number, headers=ALICE)
    leased = rest.ask("GET", "/subscriptions/parts-s/messages", query={"max_messages": 20}, headers=ALICE)
    ack_ids = [message["ack_id"] for message in leased.json["messages"]]
    rest.ask("POST", "/subscriptions/parts-s/reject", {"ack_ids": ack_ids}, headers=ALICE)

    def dead() -> int:
        return int(rest.ask("GET", "/subscriptions/parts-s", headers=ALICE).json["dead"])

    while dead() < 20:
        continue
    assert topics(working, dave).status == 200
    working.send("POST", "/subscriptions/parts-s/redrive", b'{"rate": 5}', headers=dave)
    while dead() == 20:
        continue
    set_password(guarded, "dave", None)
    with pytest.raises(ConnectionError):
        working.receive()
    working.close()
    left = dead()
    assert 0 < left < 20
    rest.ask("GET", "/subscriptions/parts-s/messages", query={"wait": "1s"}, headers=ALICE)
    assert dead() == left


def test_lease_names_the_user_who_has_it(rest: Rest) -> None:
    rest.ask("POST", "/topics/jobs/messages", b"1", headers=ALICE)
    rest.ask("POST", "/topics/jobs/subscriptions", {"name": "jobs-s", "start": "earliest"}, headers=ALICE)
    path = "/subscriptions/jobs-s/messages"
    leased = rest.ask("GET", path, query={"client_id": "worker ä", "wait": "20s"}, headers=ALICE).json["messages"]
    states = rest.ask("GET", f"/topics/jobs/messages/{leased[0]['message_id']}/ack", headers=ALICE)
    consumer = {"principal": "User:alice", "client_id": "worker ä", "address": "127.0.0.1"}
    assert states.json["subscriptions"]["jobs-s"]["consumer"] == consumer
    peeked = rest.ask("GET", "/subscriptions/jobs-s/peek", headers=BEARER)
    assert peeked.json["messages"][0]["consumer"] == consumer
    assert "pass:wörd" not in peeked.body.decode()
    assert rest.ask("GET", path, query={"client_id": "x" * 256}, headers=ALICE).status == 400


def test_pages_of_other_sites_are_refused_although_the_browser_logs_in(rest: Rest) -> None:
    assert topics(rest, ALICE | {"Origin": "https://evil.example"}).status == 403
    assert topics(rest, ALICE | {"Sec-Fetch-Site": "cross-site"}).status == 403
    assert topics(rest, {"Authorization": "Bearer a-token", "Origin": "https://evil.example"}).status == 200


def test_user_of_a_certificate_has_own_rights(certificates: Certificates) -> None:
    """A client that shows none is not let in."""
    settings = {
        **certificates.settings("127.0.0.1:0", "requested"),
        "network.http": "https://127.0.0.1:0",
        "network.http_users": True,
        "access.enabled": True,
        "access.super_users": "User:CN=worker",
    }

    def status(own: tuple[str, str] | None) -> int:
        context = ssl.create_default_context(cafile=certificates.authority)
        if own is not None:
            context.load_cert_chain(*own)
        connection = HTTPSConnection(urlsplit(broker.http_url).netloc, timeout=60, context=context)
        connection.request("GET", "/metrics")
        answer = connection.getresponse().status
        connection.close()
        return answer

    with Broker(memory=True, settings=settings) as broker:
        assert status(certificates.client) == 200
        assert status(certificates.of_user("another")) == 403
        assert status(None) == 401


def test_broker_with_users_may_be_reached_over_http_from_other_machines(tmp_path: Path) -> None:
    settings = {"network.http_users": True, "network.http": "0.0.0.0:0"}
    with Broker(memory=True, settings=settings) as broker:
        assert broker.http_url.startswith("http://0.0.0.0:")
