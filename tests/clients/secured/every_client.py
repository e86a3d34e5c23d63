"""Every client by every way to log in: `make secured`."""

import pytest

from tests.clients import kcat
from tests.clients.all_clients import CLIENTS, Client
from tests.clients.scenarios import make_topic
from tests.clients.secured.rightful_clients import RightfulClient
from tests.clients.toolchains import require
from tests.secured_cluster import MUTUAL_TLS, SCRAM, SecuredCluster, Way, connecting


@pytest.fixture
def rightful(client: Client, cluster: SecuredCluster, way: Way, topic: str) -> RightfulClient:
    return RightfulClient(client, cluster, way, topic)


def test_records_come_back_as_they_were_sent(rightful: RightfulClient) -> None:
    rightful.check_records()


def test_only_committed_records_are_read(rightful: RightfulClient) -> None:
    rightful.check_transaction()


@pytest.mark.parametrize(
    ("client", "protocol"),
    [pytest.param(each, protocol, id=f"{each.name}-{protocol}") for each in CLIENTS for protocol in each.protocols],
)
def test_a_member_reads_and_commits(rightful: RightfulClient, protocol: str) -> None:
    rightful.check_member(protocol)


def test_topics_are_administered(rightful: RightfulClient) -> None:
    rightful.check_administration()


def test_what_no_acl_allows_is_refused(rightful: RightfulClient) -> None:
    rightful.check_refusal()


@pytest.mark.parametrize("way", [SCRAM, MUTUAL_TLS], ids=lambda each: each.name)
def test_kcat_reads_what_it_sends(cluster: SecuredCluster, way: Way, topic: str) -> None:
    """kcat alone has no way to take a token from a file."""
    require("kcat", "kcat")
    place = cluster.place(way)
    cluster.allow(way, topic, {"topic": "create,read,write"})
    with connecting(cluster.connection(way)):
        make_topic(place.bootstrap_servers, topic, 1)
        kcat.kcat(place, "-P", "-t", topic, given=b"one\ntwo\n")
        assert kcat.kcat(place, *kcat.READ_ALL, "-t", topic) == b"one\ntwo\n"
        refused = kcat.try_to(place, "-P", "-t", f"not-{topic}", given=b"one\n")
    assert b"Topic authorization failed" in refused.stderr
    assert refused.returncode != 0
