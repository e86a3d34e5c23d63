"""Every client with a bearer token: what it does in the clear, it does here, and strangers are refused.

Clients whose sessions end go on: most log in again on their connections, and the others connect again.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from conveyor.broker.clients import credentials
from conveyor.testing import Broker
from tests.clients import scenarios
from tests.clients.all_clients import Client
from tests.clients.applications import until
from tests.clients.programs import Program
from tests.clients.python.security import VARIABLE, librdkafka
from tests.clients.rest_client import Rest
from tests.identity_provider import AUDIENCE, ISSUER, KeyServer, key_set, signing_key, token

_COUNT = 1000
_SESSION_MS = 1_000
_SESSIONS = 4

SETTINGS: dict[str, object] = {
    "network.kafka": "SASL_PLAINTEXT://127.0.0.1:0",
    "network.sasl_mechanisms": "OAUTHBEARER",
    "network.http_users": True,
    "sasl.oauth_audience": AUDIENCE,
    "sasl.oauth_issuer": ISSUER,
}


@pytest.fixture(scope="module")
def keys() -> Iterator[KeyServer]:
    document = key_set(signing_key("RS256"))
    with KeyServer(lambda _: (200, {"Content-Type": "application/json"}, document)) as server:
        yield server


@pytest.fixture(scope="module")
def broker(keys: KeyServer) -> Iterator[Broker]:
    with Broker(memory=True, settings={**SETTINGS, "sasl.jwks_url": keys.url}) as running:
        yield running


@pytest.fixture(scope="module")
def forgetful(keys: KeyServer) -> Iterator[Broker]:
    """Yield a broker whose sessions are short."""
    short = {"sasl.jwks_url": keys.url, "sasl.max_reauth_ms": _SESSION_MS}
    with Broker(memory=True, settings={**SETTINGS, **short}) as running:
        yield running


@pytest.fixture(autouse=True)
def write_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Let the clients have a token; those of other claims if it is called with them."""
    file = tmp_path / "token"
    monkeypatch.setenv(VARIABLE, json.dumps({"protocol": "SASL_PLAINTEXT", "token": str(file)}))

    def write(**claims: object) -> str:
        made = token(int(time.time() * 1000), **claims)  # type: ignore[arg-type]
        file.write_text(made)
        return made

    write()
    return write


@pytest.mark.sweep
def test_records_come_back_as_they_were_sent(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_records(program, broker, topic, ("none",), _COUNT)


@pytest.mark.sweep
def test_only_committed_records_are_read(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_transaction(program, broker, topic)


def test_strangers_are_refused(
    program: Program, broker: Broker, topic: str, write_token: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """The client sends a token that is for another service, and ends its exchange as the broker expects it."""
    caplog.set_level(logging.DEBUG, credentials.__name__)
    write_token(aud="another")
    stranger = program.start("admin", broker.bootstrap_servers, topic)
    try:
        [reason, *_] = until(lambda: [each for each in caplog.messages if "login refused" in each], "a refusal")
    finally:
        said = stranger.kill()
    assert reason.endswith("mechanism=OAUTHBEARER reason=a token for others, aud='another'")
    assert not said


def test_clients_go_on_after_their_sessions(client: Client, program: Program, forgetful: Broker, topic: str) -> None:
    """A member of a group reads on for some sessions, and the producer beside it sends."""
    scenarios.make_topic(forgetful.bootstrap_servers, topic, 1)
    scenarios.commit_start(forgetful.bootstrap_servers, topic, 1)
    before = expired_sessions(forgetful)
    member = program.start("member", forgetful.bootstrap_servers, topic, topic, client.protocols[0], 10_000)
    producer = Producer(librdkafka(forgetful.bootstrap_servers))
    ends, number = time.monotonic() + _SESSIONS * _SESSION_MS / 1000, 0
    while time.monotonic() < ends:
        producer.produce(topic, str(number).encode())
        assert producer.flush(30) == 0
        member.until(lambda line, number=number: line.get("offset") == number)  # type: ignore[misc]
        number += 1
    member.kill()
    assert (expired_sessions(forgetful) == before) is client.logs_in_again


def expired_sessions(broker: Broker) -> int:
    rest = Rest(broker)
    page = rest.ask("GET", "/metrics", headers={"Authorization": f"Bearer {token(int(time.time() * 1000))}"}).body
    rest.close()
    [line] = [line for line in page.decode().splitlines() if line.startswith("conveyor_network_sessions_expired_total")]
    return int(float(line.split()[1]))
