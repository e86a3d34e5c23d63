"""One cluster for all tests of a module, with three ways to log in."""

from collections.abc import Iterator

import pytest

from tests.certificates import Certificates
from tests.clients.rebalances import QUICK_GROUPS
from tests.secured_cluster import WAYS, SecuredCluster, Way


@pytest.fixture(scope="module")
def cluster(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(certificates, tmp_path_factory.mktemp("secured"), QUICK_GROUPS) as running:
        yield running


@pytest.fixture(params=WAYS, ids=lambda each: each.name)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen
