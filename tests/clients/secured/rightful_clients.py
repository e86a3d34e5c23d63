"""What a client has to get right on a cluster where it logs in, and has only the rights that its work needs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.clients import scenarios
from tests.clients.all_clients import Client
from tests.clients.rebalances import STEP, Group, committed, is_record, numbers_read, settle
from tests.secured_cluster import SecuredCluster, Way, connecting

_COUNT = 1000
_ATTEMPTS = 3
_REFUSED = re.compile(r"TOPIC_AUTHORIZATION_FAILED|topic ?authorization ?(failed|exception)", re.IGNORECASE)


class RightfulClient:
    """A client that connects by a way. Each check has a topic of its own, for which the client gets rights."""

    def __init__(self, client: Client, cluster: SecuredCluster, way: Way, topic: str) -> None:
        self._client, self._program = client, client.program()
        self._cluster, self._way, self._topic = cluster, way, topic
        self._place = cluster.place(way)

    def check_records(self) -> None:
        with self._may("records", topic="create,read,write", group="read") as topic:
            scenarios.check_records(self._program, self._place, topic, ("none",), _COUNT)

    def check_transaction(self) -> None:
        with self._may("transaction", topic="create,read,write", group="read", transactional_id="write") as topic:
            scenarios.check_transaction(self._program, self._place, topic)

    def check_member(self, protocol: str) -> None:
        """A member joins, reads, commits and leaves."""
        with (
            self._may(protocol, topic="create,read,write", group="read") as topic,
            Group(self._program, self._place, topic, protocol) as group,
        ):
            member = group.join()
            settle(member)
            group.produce(range(STEP))
            while len(numbers_read(member)) < STEP:
                member.until(is_record)
            group.leave(member)
            assert sorted(numbers_read(member)) == list(range(STEP))
            assert committed(self._place, topic) == STEP

    def check_administration(self) -> None:
        """A step may ask a broker that has yet to learn of the step before: then all are taken again."""
        for attempt in range(1, _ATTEMPTS + 1):
            with self._may(f"admin-{attempt}", topic="create,write,alter,alter_configs,delete") as topic:
                try:
                    return scenarios.check_admin(self._program, self._place, topic, self._client.unknown_topic_steps)
                except AssertionError:
                    if attempt == _ATTEMPTS:
                        raise
        raise AssertionError

    def check_all(self) -> None:
        """Make all checks, that of a member with the newest protocol that the client has."""
        self.check_records()
        self.check_transaction()
        self.check_member(self._client.protocols[-1])
        self.check_administration()
        self.check_refusal()

    def check_refusal(self) -> None:
        """A topic for which nothing is allowed is not created: the client says why, by its own error."""
        with self._may("other") as topic:
            said = self._program.fail("admin", self._place.bootstrap_servers, f"not-{topic}")
        assert _REFUSED.search(said), said
        assert f"not-{topic}" not in self._cluster.topics()

    @contextmanager
    def _may(self, name: str, **operations: str) -> Iterator[str]:
        """Allow operations on a topic, and on what has its name; yields the name. The client connects inside."""
        topic = f"{self._topic}-{name}"
        self._cluster.allow(self._way, topic, operations)
        with connecting(self._cluster.connection(self._way)):
            yield topic
