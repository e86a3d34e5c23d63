"""Three brokers on a ZooKeeper, one of which is always being restarted: by SIGTERM and by SIGKILL in turn."""

import gc
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from tests.cluster.broker_cluster import BrokerCluster

SETTINGS = {
    "broker.default_replication_factor": 3,
    "topics.min_insync_replicas": 2,
    # The longest that ZooKeeper grants here: a busy machine must not end sessions.
    "zookeeper.session_timeout_ms": 10_000,
}
_IN_SYNC_S = 180
_LOOK_S = 0.1


class RollingCluster:
    """The brokers, and the thread that restarts them, inside a `with` block: the first one at once.

    After a restart all replicas are in sync again before the next broker is stopped, and the leaders return to the
    preferred brokers. every_s: from one restart to the next, if that is longer.
    """

    def __init__(self, directory: Path, every_s: float, settings: Mapping[str, object] | None = None) -> None:
        options = [f"{name}={value}" for name, value in {**SETTINGS, **(settings or {})}.items()]
        self.brokers = BrokerCluster(directory, options=tuple(word for option in options for word in ("--set", option)))
        self.restarts_count = 0
        self._restarted = threading.Condition()
        self._every_s = every_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self.brokers.bootstrap

    def start(self) -> Self:
        self.brokers.start()
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        self.await_in_sync()
        return self

    def end(self) -> None:
        """Kill everything, and collect the connections through proxies that were half open when a broker was killed."""
        self.brokers.end()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def __enter__(self) -> Self:
        self._over.clear()
        self._thread = threading.Thread(target=self._run, name="restarts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the last restart finish. Raises the failure of a restart."""
        self._over.set()
        assert self._thread is not None
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def await_restart(self, seconds: float) -> None:
        """Wait for the end of a restart, or so long. Raises the failure of a restart."""
        with self._restarted:
            self._restarted.wait(seconds)
        if self._failure is not None:
            raise self._failure

    def await_in_sync(self) -> None:
        """Return once every partition has a leader and all its replicas."""
        deadline = time.monotonic() + _IN_SYNC_S
        while (late := self._late()) is not None:
            assert time.monotonic() < deadline, f"not in sync after {_IN_SYNC_S} s: {late}"
            time.sleep(_LOOK_S)

    def _late(self) -> str | None:
        """Return what is not in sync yet."""
        try:
            metadata = self._admin.list_topics(timeout=10)
        except KafkaException as error:
            return str(error)
        if len(metadata.brokers) < len(self.brokers.nodes):
            return f"brokers {sorted(metadata.brokers)}"
        for topic in metadata.topics.values():
            for partition in topic.partitions.values():
                if partition.leader < 0 or len(partition.isrs) < len(partition.replicas):
                    return f"{topic.topic}-{partition.id} leader={partition.leader} isr={partition.isrs}"
        return None

    def _run(self) -> None:
        try:
            while True:
                began = time.monotonic()
                self._restart(self.restarts_count)
                with self._restarted:
                    self.restarts_count += 1
                    self._restarted.notify_all()
                if self._over.wait(max(0.0, began + self._every_s - time.monotonic())):
                    return
        except BaseException as failure:  # noqa: BLE001
            self._failure = failure

    def _restart(self, number: int) -> None:
        node = self.brokers.nodes[number % len(self.brokers.nodes)]
        if number % 2:
            node.kill()
        else:
            code = node.stop()
            assert code == 0, f"a broker stopped with exit code {code}: {node.process.log()[-2000:]}"
        node.start()
        self.await_in_sync()
        self._admin.elect_leaders(ElectionType.PREFERRED).result()
