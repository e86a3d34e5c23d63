"""Clients of a cluster under faults. Each runs on a thread until `is_over`, and writes down what it was told."""

import json
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.ledgers import DeliveryLedger, RecordLedger, Violation

RECORDS, DELAYED, DUE, JOBS = "records", "delayed", "due", "jobs"
WORK = "work"
PARTITIONS = 6

_FAST_RETRIES = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
}
_IN_FLIGHT = 200
_REQUEST_S = 15.0
_LONGEST_DELAY_MS = 3_000
_COMMIT_EVERY = 50


class Site:
    """What all clients share. counts: of what they were answered. longest_gap_s: between two acknowledgements."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self.is_over = False
        self.counts: Counter[str] = Counter()
        self.longest_gap_s = 0.0
        self.errors: list[str] = []
        self._acknowledged_at = time.monotonic()
        self._lock = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def acknowledged(self) -> None:
        """A record was acknowledged."""
        with self._lock:
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self._acknowledged_at)
            self._acknowledged_at = now
            self.counts["records acknowledged"] += 1


class Brokers(Protocol):
    """Addresses of brokers, as clients take them."""

    @property
    def bootstrap(self) -> str: ...


class Client(Protocol):
    """One client on a thread of its own."""

    def run(self) -> None: ...


def create_topics(cluster: BrokerCluster) -> None:
    """Create the topics of all workloads with three replicas, and the subscription."""
    config = {"min.insync.replicas": "2"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [
        NewTopic(RECORDS, PARTITIONS, 3, config=config),
        NewTopic(DUE, 2, 3, config=config),
        NewTopic(DELAYED, 2, 3, config={"delay.target": DUE}),
        NewTopic(JOBS, 3, 3, config=config),
    ]
    for created in admin.create_topics(topics, operation_timeout=30).values():
        created.result(60)
    subscription = {"name": WORK, "start": "earliest", "visibility_timeout_ms": 5_000}
    RestClient(cluster, 0).insist("POST", f"/topics/{JOBS}/subscriptions", subscription)


class RecordWriter:
    """An idempotent producer with acks=all. Values are `name:number`; each number goes to one partition."""

    def __init__(self, site: Site, ledger: RecordLedger, name: str, topic: str = RECORDS) -> None:
        self._site = site
        self._ledger = ledger
        self._name = name
        self._topic = topic

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._site.cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 600_000,
                **_FAST_RETRIES,
            }
        )
        number = 0
        while not self._site.is_over:
            while len(producer) < _IN_FLIGHT:
                value = f"{self._name}:{number}".encode()
                producer.produce(self._topic, value, partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            producer.poll(0.02)
        left = producer.flush(120)
        if left:
            self._site.errors.append(f"{left} records of {self._name} were not acknowledged after the faults")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._site.errors.append(f"a record failed: {error}")
            return
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert value is not None
        self._ledger.acknowledge(partition, message.offset(), value)
        self._site.acknowledged()


class RecordReader:
    """Reads all partitions from the start, without a group. A reset position is a violation."""

    def __init__(self, site: Site, ledger: RecordLedger) -> None:
        self._site = site
        self._ledger = ledger

    def run(self) -> None:
        consumer = _reader(self._site.cluster, "nobody")
        consumer.assign([TopicPartition(RECORDS, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        while not self._site.is_over:
            for message in consumer.consume(500, 0.2):
                _check_position(self._site, message)
                if message.error() is None:
                    self._ledger.see(*_content(message))
                    self._site.count("records read as they came")
        consumer.close()


class GroupMember:
    """A member of a group that commits what it has read, and after each rebalance looks for its commits."""

    def __init__(self, site: Site, committed: dict[int, int], lock: threading.Lock) -> None:
        """committed: the highest confirmed commit of each partition, shared by all members."""
        self._site = site
        self._committed = committed
        self._lock = lock
        self._assigned: list[TopicPartition] = []

    def run(self) -> None:
        consumer = _reader(self._site.cluster, "members", {"auto.offset.reset": "earliest"})
        consumer.subscribe([RECORDS], on_assign=lambda _, assigned: self._assigned.extend(assigned))
        count = 0
        while not self._site.is_over:
            message = consumer.poll(0.2)
            if self._assigned:
                self._check_commits(consumer)
            if message is not None and message.error() is None:
                self._site.count("records read by the group")
                count += 1
                if count % _COMMIT_EVERY == 0:
                    self._commit(consumer)
        consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        try:
            confirmed = consumer.commit(asynchronous=False) or []
        except KafkaException:
            self._site.count("commits refused")
            return
        with self._lock:
            for place in confirmed:
                if place.error is None and place.offset >= 0:  # Otherwise there was nothing to commit.
                    self._committed[place.partition] = max(self._committed.get(place.partition, 0), place.offset)
        self._site.count("commits confirmed")

    def _check_commits(self, consumer: Consumer) -> None:
        """Compare the positions of a new assignment with the commits that were confirmed before."""
        with self._lock:
            expected = dict(self._committed)
        try:
            found = consumer.committed(self._assigned, timeout=10)
        except KafkaException:
            self._site.count("positions not told yet")
            return
        self._assigned.clear()
        self._site.count("assignments to members")
        for place in found:
            committed = expected.get(place.partition)
            if place.error is None and committed is not None and place.offset < committed:
                self._site.errors.append(
                    f"partition {place.partition}: commit {committed} was confirmed, and is {place.offset} now"
                )


class DelayedWriter:
    """Writes records that are due later. The ledger is checked for doubles; `due_ms` for records that came early."""

    def __init__(self, site: Site, ledger: RecordLedger) -> None:
        self._site = site
        self._ledger = ledger
        self.acknowledged: set[bytes] = set()
        self.due_ms: dict[bytes, int] = {}

    def run(self) -> None:
        chance = Random(5)
        producer = Producer(
            {
                "bootstrap.servers": self._site.cluster.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                **_FAST_RETRIES,
            }
        )
        number = 0
        while not self._site.is_over:
            while len(producer) < 20:
                value, due_ms = f"d:{number}".encode(), int(time.time() * 1000) + chance.randrange(_LONGEST_DELAY_MS)
                self.due_ms[value] = due_ms
                headers = [("conveyor-deliver-at-ms", str(due_ms).encode())]
                producer.produce(DELAYED, value, partition=number % 2, headers=headers, on_delivery=self._delivered)
                number += 1
            producer.poll(0.05)
        producer.flush(120)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is None:
            self.acknowledged.add(value)
            self._site.count("delayed records acknowledged")


class JobPublisher:
    """Publishes messages over REST to any broker."""

    def __init__(self, site: Site, ledger: DeliveryLedger, name: str) -> None:
        self._site = site
        self._ledger = ledger
        self._name = name

    def run(self) -> None:
        client, number = RestClient(self._site.cluster, hash(self._name)), 0
        while not self._site.is_over:
            payloads = [f"{self._name}-{number + index}" for index in range(5)]
            number += len(payloads)
            body = {"messages": [{"payload": payload} for payload in payloads]}
            answer = client.ask("POST", f"/topics/{JOBS}/messages:batch", body)
            for payload, result in zip(payloads, (answer or {"results": []})["results"], strict=False):
                if result["status"] == "ok":
                    self._ledger.publish(payload)
                    self._site.count("jobs published")
            time.sleep(0.05)


class JobWorker:
    """Leases messages from any broker, and acknowledges them at any broker."""

    def __init__(self, site: Site, ledger: DeliveryLedger, seed: int) -> None:
        self._site = site
        self._ledger = ledger
        self._client = RestClient(site.cluster, seed)

    def run(self) -> None:
        while not self._site.is_over:
            self.work("500ms")

    def work(self, wait: str) -> None:
        """Lease some messages and acknowledge them."""
        asked_at = time.monotonic()
        leased = (self._client.ask("GET", f"/subscriptions/{WORK}/messages?max_messages=20&wait={wait}") or {}).get(
            "messages", []
        )
        for message in leased:
            self._ledger.deliver(message["payload"], asked_at)
        if not leased:
            return
        body = {"ack_ids": [message["ack_id"] for message in leased]}
        answer = self._client.ask("POST", f"/subscriptions/{WORK}/ack", body)
        if answer is None:
            for message in leased:
                self._ledger.send_unanswered(message["payload"])
            return
        for message, result in zip(leased, answer["results"], strict=True):
            if result["status"] == "ok":
                self._ledger.settle(message["payload"], time.monotonic())
                self._site.count("jobs acknowledged")
            elif result["error"]["kind"] != "lease_lost":
                self._ledger.send_unanswered(message["payload"])


class RestClient:
    """Asks one broker after another: the next one after each failure."""

    def __init__(self, cluster: BrokerCluster, seed: int) -> None:
        self._cluster = cluster
        self._number = seed % len(cluster.nodes)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer; None if there was none, or a failure that may pass."""
        connection = HTTPConnection(self._cluster.nodes[self._number].http, timeout=_REQUEST_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException):
            self._number = (self._number + 1) % len(self._cluster.nodes)
            time.sleep(0.05)
            return None
        finally:
            connection.close()
        if response.status < 300:
            return json.loads(answer)
        document = json.loads(answer)
        if not document.get("retriable"):
            raise Violation(f"{method} {path}: {response.status} {answer.decode()}")
        self._number = (self._number + 1) % len(self._cluster.nodes)
        time.sleep(0.1)
        return None

    def insist(self, method: str, path: str, body: object = None) -> Any:
        """Ask until there is an answer."""
        ends = time.monotonic() + 120
        while (answer := self.ask(method, path, body)) is None:
            if time.monotonic() > ends:
                raise Violation(f"{method} {path} had no answer for two minutes")
        return answer


def _end_offset(consumer: Consumer, place: TopicPartition) -> int:
    """Return the high watermark, from the leader that is found within a minute."""
    ends = time.monotonic() + 60
    while True:
        try:
            end_offset: int = consumer.get_watermark_offsets(place, 60)[1]
        except KafkaException:
            if time.monotonic() > ends:
                raise
            consumer.poll(0.1)  # Lets the client learn of the next leader.
        else:
            return end_offset


def read_all(cluster: Brokers, topic: str, partitions: int) -> dict[tuple[int, int], bytes]:
    """Return every record of a topic by (partition, offset), from a reader that begins now."""
    consumer = _reader(cluster, "final")
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
    ends = {place.partition: _end_offset(consumer, place) for place in places}
    consumer.assign(places)
    records: dict[tuple[int, int], bytes] = {}
    unread = {number for number, end in ends.items() if end}
    deadline = time.monotonic() + 300
    while unread:
        if time.monotonic() > deadline:
            raise Violation(f"{topic}: partitions {sorted(unread)} could not be read to their ends {ends}")
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                partition, offset, value = _content(message)
                records[partition, offset] = value
        positions = {place.partition: place.offset for place in consumer.position(places)}
        unread = {number for number in unread if positions[number] < ends[number]}
    consumer.close()
    return records


def _reader(cluster: Brokers, group: str, more: dict[str, object] | None = None) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "session.timeout.ms": 6_000,
            **_FAST_RETRIES,
            **(more or {}),
        }
    )


def _check_position(site: Site, message: Message) -> None:
    error = message.error()
    if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
        site.errors.append(f"a reader lost its position: {error}")


def _content(message: Message) -> tuple[int, int, bytes]:
    """Return partition, offset and value of a record."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return partition, offset, value
