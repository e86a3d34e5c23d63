"""Policies as documents, valid and invalid."""

from dataclasses import replace
from uuid import UUID

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import (
    MAX_ANNOTATIONS_BYTES,
    RetryPolicy,
    StartPosition,
    Subscription,
    changed_annotations,
    check_name,
    decode_subscription,
    default_policy,
    encode_subscription,
    policy_document,
    policy_from_document,
)

BASE = default_policy("t", 100_000)


def test_empty_document_is_the_default() -> None:
    assert policy_from_document("t", {}, BASE) == BASE
    assert BASE.dead_letter_topic == "t.dlq"


def test_fields_that_are_not_given_stay() -> None:
    changed = policy_from_document("t", {"paused": True, "retry": {"factor": 3}}, replace(BASE, max_deliveries=9))
    assert (changed.paused, changed.max_deliveries, changed.retry) == (True, 9, RetryPolicy(factor=3.0))


def test_document_of_a_policy_makes_it_again() -> None:
    policy = replace(BASE, filter="size > 1", ordering="key", retry=RetryPolicy(base_ms=0, factor=1.5, cap_ms=10))
    assert policy_from_document("t", policy_document(policy), BASE) == policy


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"delivry": "at_most_once"}, "unknown field 'delivry'"),
        ({"delivery": "twice"}, "one of at_least_once, at_most_once, exactly_once"),
        ({"delivery": ["at_most_once"]}, "one of"),
        ({"ordering": None}, "one of none, key"),
        ({"visibility_timeout_ms": -1}, "from 0 to 43200000"),
        ({"visibility_timeout_ms": 43_200_001}, "from 0 to 43200000"),
        ({"visibility_timeout_ms": True}, "a whole number"),
        ({"visibility_timeout_ms": 1.5}, "a whole number"),
        ({"max_deliveries": "5"}, "a whole number"),
        ({"max_in_flight": 0}, "from 1 to 1000000"),
        ({"ordering": "key", "max_in_flight_per_key": 0}, "from 1 to 1000"),
        ({"ordering": "key", "max_in_flight_per_key": 1_001}, "from 1 to 1000"),
        ({"max_in_flight_per_key": 2}, "ordering 'key' only"),
        ({"paused": 1}, "true or false"),
        ({"filter": ""}, "a text, or null"),
        ({"fair_by": 3}, "a text of 1 to 200 characters, or null"),
        ({"fair_by": "x" * 201}, "a text of 1 to 200 characters, or null"),
        ({"retry": 5}, "an object of base_ms, cap_ms, factor"),
        ({"retry": {"base": 5}}, "an object of"),
        ({"retry": {"factor": 0.5}}, "a number from 1 to 100"),
        ({"retry": {"factor": float("nan")}}, "a number from 1 to 100"),
        ({"retry": {"base_ms": 10, "cap_ms": 5}}, "below retry.base_ms"),
        ({"dead_letter_topic": "t"}, "the topic itself"),
        ({"dead_letter_topic": ""}, "the name of a topic"),
        ({"dead_letter_topic": "a b"}, "the name of a topic"),
        ({"dead_letter_topic": ".."}, "the name of a topic"),
        ({"dead_letter_topic": None}, "the name of a topic"),
        ({"ordering": "key", "fair_by": "tenant"}, "exclude each other"),
    ],
)
def test_bad_document_is_refused_with_what_is_right(document: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        policy_from_document("t", document, BASE)
    assert refused.value.kind is ErrorKind.INVALID_SUBSCRIPTION


def test_null_takes_a_filter_away() -> None:
    assert policy_from_document("t", {"filter": None}, replace(BASE, filter="size > 1")).filter is None


@pytest.mark.parametrize("name", ["orders", "a.b-c_D9", "x" * 200])
def test_names_that_are_taken(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 201, "a\n"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="not valid"):
        check_name(name)


def test_subscription_is_stored_and_read_again() -> None:
    subscription = Subscription(
        id=UUID(int=1),
        name="s",
        topic="t",
        topic_id=UUID(int=2),
        start=StartPosition(kind="timestamp", timestamp_ms=5),
        partition_count=3,
        policy=replace(BASE, retry=RetryPolicy(base_ms=5)),
    )
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert "annotations" not in encode_subscription(subscription)
    annotated = replace(subscription, annotations={"a": "b"})
    assert decode_subscription(encode_subscription(annotated)) == annotated
    assert hash(annotated) == hash(subscription)


def test_annotations_are_set_and_removed() -> None:
    assert changed_annotations({"a": "1", "b": "2"}, {"a": "3", "b": None, "c": "", "d": None}) == {"a": "3", "c": ""}


def test_annotations_are_limited_in_bytes() -> None:
    fits = "é" * (MAX_ANNOTATIONS_BYTES // 2 - 1)
    assert changed_annotations({}, {"é": fits})
    with pytest.raises(RequestError, match="would have 65538 bytes: at most 65536"):
        changed_annotations({"é": fits}, {"é": f"{fits}é"})
