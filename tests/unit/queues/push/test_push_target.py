"""The target of a push in the metadata, and its limits."""

from dataclasses import asdict, replace
from uuid import UUID

import pytest

from conveyor.kernel.errors import RequestError
from conveyor.queues.push.push_target import (
    MAX_BATCH,
    MAX_CONCURRENCY,
    PushOwner,
    PushTarget,
    changed_target,
    decoded_target,
)
from conveyor.queues.push.request_id import request_id
from conveyor.queues.subscription.policy import (
    StartPosition,
    Subscription,
    decode_subscription,
    default_policy,
    encode_subscription,
)
from conveyor.records.message import Message

TARGET = PushTarget(
    url="https://example.com/",
    mode="batch",
    owner=PushOwner(user="alice", address="192.0.2.1", has_password=True),
    secrets=("plain 00", "plain 01"),
)
SUBSCRIPTION = Subscription(
    id=UUID(int=1), name="s", topic="t", topic_id=UUID(int=2), start=StartPosition(), partition_count=3,
    policy=default_policy("t", 10), push=TARGET,
)  # fmt: skip


@pytest.mark.parametrize("push", [TARGET, None])
def test_subscription_keeps_its_target_in_the_metadata(push: PushTarget | None) -> None:
    subscription = replace(SUBSCRIPTION, push=push)
    assert decode_subscription(encode_subscription(subscription)) == subscription


def test_field_of_a_later_version_is_dropped() -> None:
    assert decoded_target(asdict(TARGET) | {"of_tomorrow": 1}) == TARGET


@pytest.mark.parametrize(
    "document",
    [
        {"url": "ftp://example.com"},
        {"mode": "xml"},
        {"max_concurrency": 0},
        {"max_concurrency": MAX_CONCURRENCY + 1},
        {"timeout_ms": 99},
        {"batch_size": MAX_BATCH + 1},
        {"content_type": "a\r\nb/c"},
        {"content_type": "text"},
        {"content_type": "a/" + "b" * 200},
    ],
)
def test_illegal_values_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=r"push\."):
        changed_target(TARGET, document)


def test_request_has_the_same_id_at_each_attempt_and_no_other_request_has_it() -> None:
    first, second = (Message("t", 0, offset, 0, None, b"", ()) for offset in (0, 1))
    ids = [
        request_id(topic_id, messages)
        for topic_id in (UUID(int=1), UUID(int=2))
        for messages in ([first], [second], [first, second], [second, first])
    ]
    assert len(set(ids)) == len(ids)
    assert request_id(UUID(int=1), [first._replace(timestamp_ms=9)]) == ids[0]
    assert not any("." in each for each in ids)
