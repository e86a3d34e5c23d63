"""Every client by TLS, and by mutual TLS: what it does in the clear, it does here, and strangers are refused.

All clients check that the broker's certificate is for its address.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient

from conveyor.adapters.tls import tls_acceptor
from conveyor.settings.tls_settings import REQUIRED
from conveyor.testing import Broker
from tests.certificates import Certificates
from tests.clients import scenarios
from tests.clients.all_clients import Client
from tests.clients.applications import until
from tests.clients.kcat import READ_ALL, connection, kcat
from tests.clients.programs import Program, Running
from tests.clients.python.security import librdkafka
from tests.clients.toolchains import require

_COUNT = 1000

CLIENT_AUTH = ("none", REQUIRED)
MUTUALLY = pytest.mark.parametrize("client_auth", [REQUIRED])
STRANGERS = pytest.mark.parametrize("has_certificate", [True, False])

ByTls = Callable[[tuple[str, str] | None], None]


@pytest.fixture(scope="module")
def brokers(certificates: Certificates) -> Iterator[dict[str, Broker]]:
    """One broker for each value of `tls.client_auth` that is tested."""
    with ExitStack() as running:
        settings = {client_auth: certificates.settings("SSL://127.0.0.1:0", client_auth) for client_auth in CLIENT_AUTH}
        yield {name: running.enter_context(Broker(memory=True, settings=each)) for name, each in settings.items()}


@pytest.fixture(params=CLIENT_AUTH)
def client_auth(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def broker(brokers: dict[str, Broker], client_auth: str) -> Broker:
    return brokers[client_auth]


@pytest.fixture(autouse=True)
def connect(by_tls: ByTls, certificates: Certificates, client_auth: str) -> None:
    """Let the clients show a certificate only if they have to."""
    by_tls(certificates.client if client_auth == REQUIRED else None)


@pytest.fixture
def refusals(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Captures why the broker refuses connections."""
    caplog.set_level(logging.DEBUG, tls_acceptor.__name__)
    return caplog


def test_records_come_back_as_they_were_sent(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_records(program, broker, topic, ("none",), _COUNT)


def test_only_committed_records_are_read(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_transaction(program, broker, topic)


def test_topics_are_administered(client: Client, program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_admin(program, broker, topic, client.unknown_topic_steps)


def test_kcat_reads_what_it_sends(broker: Broker, topic: str) -> None:
    require("kcat", "kcat")
    kcat(broker, "-P", "-t", topic, given=b"one\ntwo\n")
    assert kcat(broker, *READ_ALL, "-t", topic) == b"one\ntwo\n"


@MUTUALLY
@STRANGERS
def test_strangers_are_refused(
    program: Program,
    broker: Broker,
    topic: str,
    has_certificate: bool,
    by_tls: ByTls,
    certificates: Certificates,
    refusals: pytest.LogCaptureFixture,
) -> None:
    by_tls(certificates.foreign_client if has_certificate else None)
    check_refusal(program.start("admin", broker.bootstrap_servers, topic), refusals)
    by_tls(certificates.client)
    assert topic not in AdminClient(librdkafka(broker.bootstrap_servers)).list_topics(timeout=20).topics


@MUTUALLY
@STRANGERS
def test_kcat_is_refused_as_a_stranger(
    broker: Broker, has_certificate: bool, by_tls: ByTls, certificates: Certificates, refusals: pytest.LogCaptureFixture
) -> None:
    require("kcat", "kcat")
    by_tls(certificates.foreign_client if has_certificate else None)
    listing = Running(["kcat", *connection(broker.bootstrap_servers), "-L"], lambda text: {"printed": text})
    check_refusal(listing, refusals)


def check_refusal(stranger: Running, refusals: pytest.LogCaptureFixture) -> None:
    """The broker refuses a program because of its certificate, and the program achieves nothing."""
    try:
        [reason, *_] = until(lambda: refusals.messages, "a refusal")
    finally:
        said = stranger.kill()
    assert "certificate" in reason
    assert not said
