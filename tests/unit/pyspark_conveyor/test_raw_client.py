"""A client without TLS at a listener with it says so, also after its error has passed from a worker to the driver."""

import pickle
from pathlib import Path

import pytest

from conveyor.adapters.tls.development_authority import DevelopmentAuthority
from conveyor.testing import Broker
from pyspark_conveyor.brokers import raw_client
from pyspark_conveyor.brokers.raw_client import ConnectionFailedError, RawClient
from tests.certificates import write


@pytest.mark.slow
def test_client_without_tls_says_what_the_listener_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_client, "_CONNECT_MS", 200)
    authority = DevelopmentAuthority.create()
    cert_file, key_file = write(tmp_path, "broker", authority.issue_for_broker(["127.0.0.1"], 1))
    ca_file, _ = write(tmp_path, "ca", authority.issued)
    settings = {"network.kafka": "SSL://127.0.0.1:0", "tls.cert_file": cert_file, "tls.key_file": key_file}
    with Broker(memory=True, settings=settings) as broker:
        client = RawClient(broker.bootstrap_servers, {})
        with pytest.raises(ConnectionFailedError, match=r"by TLS: set kafka\.security\.protocol") as caught:
            client.metadata(None)
        client.close()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        client = RawClient(broker.bootstrap_servers, {"security.protocol": "SSL", "ssl.ca.location": ca_file})
        assert len(client.metadata(None).brokers) == 1
        client.close()


def test_nobody_there_is_told() -> None:
    assert str(ConnectionFailedError("127.0.0.1:1")).startswith("no broker answers at 127.0.0.1:1: start one")
