"""Kafka Streams with `processing.guarantee=exactly_once_v2`: each word is counted once, over kills of all parts."""

from collections.abc import Mapping
from pathlib import Path

from tests.clients.applications import Killable
from tests.clients.test_kafka_streams import Words, word_count
from tests.processes import BrokerProcess

EXACTLY_ONCE = {"processing_guarantee": "exactly_once_v2", "group_instance_id": "one", "transaction_timeout_ms": "5000"}


def check_exact_counts(broker: Killable, folder: Path, *client: Mapping[str, str]) -> None:
    """The state is lost with the application, and comes back from the changelog: compacted, and written in
    transactions.
    """
    words = Words(broker.bootstrap_servers)
    with word_count(broker.bootstrap_servers, folder / "first", *client, **EXACTLY_ONCE):
        words.send()
        words.check_each_count()
        words.send()
    with word_count(broker.bootstrap_servers, folder / "without-state", *client, **EXACTLY_ONCE):
        words.check_each_count()
        words.send()
        broker.kill()
        broker.start()
        words.send()
        words.check_each_count()


def test_each_word_is_counted_once_over_kills(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--set", "broker.compaction_check_ms=50").start()
    check_exact_counts(broker, tmp_path)
    assert broker.stop() == 0
