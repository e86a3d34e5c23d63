"""The connections of a user who is removed, or whose password changes, end at all brokers of a cluster."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from conveyor.testing import Cluster
from tests.clients.raw_login import LoginRefused, ask, logged_in, wait_for_end
from tests.clients.test_secure_testing import settings
from tests.unit.kafka_api.requests import API_VERSIONS

INFO = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
OLD, NEW = "the old password", "the new password"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, security=True) as running:
        yield running


def alter(cluster: Cluster, *changes: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
    """Change users at one broker, and wait until all of them know."""
    admin = AdminClient(settings(cluster))
    for result in admin.alter_user_scram_credentials(list(changes)).values():
        result.result(60)
    seq = max(broker.image().seq for broker in cluster.brokers.values())
    for broker in cluster.brokers.values():
        broker.wait_until(lambda image: image.seq >= seq, "an image is missing")


@pytest.mark.parametrize("is_removed", [True, False])
def test_connections_of_a_user_end_at_all_brokers(cluster: Cluster, is_removed: bool) -> None:
    name = f"user-{is_removed}"
    alter(cluster, *(UserScramCredentialUpsertion(user, INFO, OLD.encode()) for user in (name, "another")))
    addresses = [broker.bootstrap_servers for broker in cluster.brokers.values()]
    of_user = [logged_in(address, cluster.ca_file, name, OLD) for address in addresses]
    of_another = [logged_in(address, cluster.ca_file, "another", OLD) for address in addresses]
    removed = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)
    alter(cluster, removed if is_removed else UserScramCredentialUpsertion(name, INFO, NEW.encode()))
    for connection in of_user:
        wait_for_end(connection)
        connection.close()
    for connection in of_another:
        assert ask(connection, API_VERSIONS, 0).error_code == 0
        connection.close()
    for address in addresses:
        with pytest.raises(LoginRefused):
            logged_in(address, cluster.ca_file, name, OLD)
    if not is_removed:
        for address in addresses:
            logged_in(address, cluster.ca_file, name, NEW).close()
