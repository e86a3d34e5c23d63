"""SIGKILL in mid-traffic of queues over REST: nothing that was answered is lost, and what was acknowledged stays so."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka as kafka
import pytest

from tests.faults.queue_traffic import GRAVE, TOPIC, Consumer, Ledger, Publisher, Redriver, Site
from tests.processes import BrokerProcess

KILLS = 20
ACKS_PER_KILL = 300
PARTITIONS = 2
# Leases end by the dozen on a slow machine: only what is rejected may die.
SHORT = {"visibility_timeout_ms": 500, "max_deliveries": 100, "retry": {"base_ms": 20, "cap_ms": 100}}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(BrokerProcess(tmp_path / "data").start())
    caller = site.caller()
    caller.insist("POST", "/topics", {"name": TOPIC, "partitions": PARTITIONS})
    for delivery in ("exactly_once", "at_least_once"):
        subscription = {"name": delivery, "start": "earliest", "delivery": delivery, **SHORT}
        caller.insist("POST", f"/topics/{TOPIC}/subscriptions", subscription)
    yield site
    site.close()


def run_through_kills(site: Site, *work: Callable[[], None]) -> None:
    """All of it at once, while the broker is killed time after time, each time after so many acknowledgements."""

    with ThreadPoolExecutor(len(work)) as pool:
        running = [pool.submit(each) for each in work]
        for each in running:
            each.add_done_callback(lambda _: site.end())  # Only if it has failed they are not at their end already.
        for kill in range(1, KILLS + 1):
            site.wait_for("acked", kill * ACKS_PER_KILL)
            if not site.is_over:
                site.restart()
        site.end()
    for each in running:
        each.result()


def drain(site: Site, ledger: Ledger) -> None:
    """Settle what there is, until nothing is left but dead letters."""
    caller, consumer = site.caller(), Consumer(site, ledger, 0)
    while caller.insist("GET", f"/subscriptions/{ledger.name}")["unsettled"]:
        leased = consumer.lease(1000, "1s")
        consumer.settle("ack", [each for each in leased if each["tag"] != GRAVE])
        consumer.settle("reject", [each for each in leased if each["tag"] == GRAVE])


def dead_letters(site: Site, ledger: Ledger) -> set[str]:
    """The ids of the messages that a subscription has given up."""
    shown = site.caller().insist("GET", f"/dlq/{ledger.name}?limit=1000")["messages"]
    return {each["message_id"] for each in shown}


def move_none(site: Site, ledger: Ledger) -> None:
    """Redrive every dead letter, and acknowledge it."""
    caller, consumer = site.caller(), Consumer(site, ledger, 0)
    left = caller.insist("POST", f"/subscriptions/{ledger.name}/redrive")["redriven"]
    while left:
        leased = consumer.lease(1000, "1s")
        consumer.settle("ack", leased)
        left -= len(leased)


def read_stream(site: Site) -> dict[str, tuple[str, bool]]:
    """The topic as a Kafka consumer sees it: each message's payload, and whether it is tagged as a grave, by its id."""
    consumer = kafka.Consumer(
        {"bootstrap.servers": site.broker.kafka, "group.id": "check", "enable.partition.eof": True}
    )
    consumer.assign([kafka.TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)])
    found, ends = {}, 0
    while ends < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None, "the broker does not answer"
        if message.error() is not None:
            ends += 1
            continue
        is_grave = ("conveyor-tag", GRAVE.encode()) in message.headers()
        found[f"{message.partition()}-{message.offset()}"] = (message.value().decode(), is_grave)
    consumer.close()
    return found


def check_publishing(stream: dict[str, tuple[str, bool]], publishers: list[Publisher]) -> None:
    payloads = {message_id: payload for message_id, (payload, _) in stream.items()}
    for each in publishers:
        assert each.acknowledged.items() <= payloads.items(), "acknowledged, and lost"
    assert max(Counter(payloads.values()).values()) == 1, "published twice"
    sent = {payload for each in publishers for payload in (*each.acknowledged.values(), *each.unanswered)}
    assert set(payloads.values()) <= sent, "published by nobody"


def check_deliveries(stream: dict[str, tuple[str, bool]], ledger: Ledger) -> None:
    assert ledger.again == [], "acknowledged, and delivered again"
    assert stream.keys() == ledger.delivered.keys(), "never delivered, or delivered from nowhere"
    assert stream.keys() == ledger.acked.keys() | ledger.unanswered, "not acknowledged, and lost"
    assert all(ledger.payloads[message_id] == {payload} for message_id, (payload, _) in stream.items())


def test_twenty_kills_lose_nothing_and_bring_nothing_back(site: Site) -> None:
    publishers = [Publisher(site, "once", with_id=True), Publisher(site, "maybe", with_id=False)]
    ledgers = [Ledger(site, "exactly_once"), Ledger(site, "at_least_once")]
    consumers = [Consumer(site, each, seed) for each in ledgers for seed in range(2)]
    redriver = Redriver(site, [each.name for each in ledgers])
    try:
        run_through_kills(site, *[each.run for each in publishers], *[each.run for each in consumers], redriver.run)
        redriver.redrive()
        for ledger in ledgers:
            drain(site, ledger)
        stream = read_stream(site)
        check_publishing(stream, publishers)
        graves = {message_id for message_id, (_, is_grave) in stream.items() if is_grave}
        for ledger in ledgers:
            assert dead_letters(site, ledger) == graves, "dead letters are lost, or come from nowhere"
            move_none(site, ledger)
            check_deliveries(stream, ledger)
    finally:
        print(report(site, publishers, ledgers))


def report(site: Site, publishers: list[Publisher], ledgers: list[Ledger]) -> str:
    """The counts, a line for each."""
    lines = dict(site.counts)
    lines["never heard of after they were published"] = sum(len(each.unanswered) for each in publishers)
    for each in ledgers:
        lines[f"{each.name}: deliveries"] = each.delivered.total()
        lines[f"{each.name}: messages delivered"] = len(each.delivered)
        lines[f"{each.name}: messages acknowledged"] = len(each.acked)
        lines[f"{each.name}: acknowledged without an answer"] = len(each.unanswered - each.acked.keys())
        lines[f"{each.name}: delivered after their acknowledgement"] = len(each.again)
    return "\n" + "\n".join(f"{number:8} {what}" for what, number in lines.items())
