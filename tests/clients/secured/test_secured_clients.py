"""Each client by one of the ways to log in, on three brokers that allow it only what its work needs.

`make secured` plays every client by every way: every_client.py.
"""

from itertools import cycle

import pytest

from tests.clients.all_clients import CLIENTS, Client
from tests.clients.secured.rightful_clients import RightfulClient
from tests.secured_cluster import WAYS, SecuredCluster, Way


@pytest.mark.parametrize(
    ("client", "way"),
    [
        pytest.param(client, way, id=f"{client.name}-{way.name}")
        for client, way in zip(CLIENTS, cycle(WAYS), strict=False)
    ],
)
def test_clients_work_with_the_rights_that_they_need(
    client: Client, cluster: SecuredCluster, way: Way, topic: str
) -> None:
    RightfulClient(client, cluster, way, topic).check_all()
