"""REST while leaders move: publishers and workers that ask any broker, and the next one after a failure."""

import threading
import time

from tests.clients.scenarios import make_topic
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.ledgers import DeliveryLedger
from tests.cluster.workloads import JOBS, PARTITIONS, WORK, Client, JobPublisher, JobWorker, RestClient, Site

_FINISH_S = 180


class RestMoves:
    """Every published message is delivered, and none after its acknowledgement was confirmed."""

    def __init__(self, cluster: BrokerCluster) -> None:
        make_topic(cluster.bootstrap, JOBS, PARTITIONS)
        subscription = {"name": WORK, "start": "earliest", "visibility_timeout_ms": 5_000}
        RestClient(cluster, 0).insist("POST", f"/topics/{JOBS}/subscriptions", subscription)
        self._site = Site(cluster)
        self._ledger = DeliveryLedger()
        self._worker = JobWorker(self._site, self._ledger, seed=2)
        clients = (JobPublisher(self._site, self._ledger, "x"), JobWorker(self._site, self._ledger, seed=1))
        self._threads = [threading.Thread(target=self._run, args=[client], daemon=True) for client in clients]
        for thread in self._threads:
            thread.start()

    def finish(self) -> int:
        """Work off all messages. Returns how many were acknowledged. Raises AssertionError."""
        self.end()
        deadline = time.monotonic() + _FINISH_S
        while self._ledger.unsettled_count and time.monotonic() < deadline:
            self._worker.work("500ms")
        self._ledger.check()
        assert not self._site.errors, self._site.errors
        return self._site.counts["jobs acknowledged"]

    def end(self) -> None:
        self._site.is_over = True
        for thread in self._threads:
            thread.join(_FINISH_S)

    def _run(self, client: Client) -> None:
        try:
            client.run()
        except Exception as error:  # noqa: BLE001
            self._site.errors.append(repr(error))
