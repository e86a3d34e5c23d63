"""The answers to requests: kept with the commit of their transaction, once for each id, and for their retention."""

from typing import Any

import pytest

from conveyor.kernel.errors import ErrorKind, StorageFailure
from conveyor.kernel.ids import ProducerIdentity
from conveyor.transactions.request_answers import LONGEST_CONTENT_BYTES, LONGEST_ID_BYTES, AnsweredBefore
from conveyor.transactions.stored_answer import (
    AnswerKey,
    NewAnswer,
    StoredAnswer,
    answer_record,
    decode_answer,
    decode_answer_key,
)
from conveyor.transactions.transaction_commands import FindAnswer
from conveyor.transactions.transaction_log import decode_transactional_id, transaction_record
from conveyor.transactions.transaction_value import TransactionState
from tests.unit.transactions.transaction_coordinator import ID, TIMEOUT_MS, TransactionCoordinator, after, kind_of

RETENTION_MS = 300_000
REQUEST = "order-4711"


@pytest.fixture
def coordinator() -> TransactionCoordinator:
    return TransactionCoordinator(answer_retention_ms=RETENTION_MS)


def answer(request_id: str = REQUEST, content: bytes = b"[]", owner: str = "") -> NewAnswer:
    return NewAnswer(key=AnswerKey(request_id, owner), digest=b"digest", content=content)


def begun(coordinator: TransactionCoordinator) -> ProducerIdentity:
    producer = coordinator.init()
    coordinator.add(producer)
    return producer


def commit(coordinator: TransactionCoordinator, kept: NewAnswer) -> None:
    """Commit a transaction with an answer, and write its markers."""
    coordinator.ended(begun(coordinator), answer=kept)
    coordinator.write_markers()


def found(
    coordinator: TransactionCoordinator, request_id: str = REQUEST, owner: str = "", digest: bytes = b"digest"
) -> Any:
    reply = coordinator.ask(FindAnswer(key=AnswerKey(request_id, owner), digest=digest))
    return getattr(reply, "answer", reply)


def test_answer_is_kept_with_the_commit(coordinator: TransactionCoordinator) -> None:
    producer = begun(coordinator)
    assert found(coordinator) is None
    before = len(coordinator.log)
    coordinator.ended(producer, answer=answer())
    assert len(coordinator.log) - before == 2
    stored = StoredAnswer(digest=b"digest", content=b"[]", answered_ms=coordinator.now_ms)
    assert found(coordinator) == stored
    coordinator.fail_over()
    assert found(coordinator) == stored
    assert coordinator.state() is TransactionState.PREPARE_COMMIT


def test_second_commit_with_the_id_is_refused(coordinator: TransactionCoordinator) -> None:
    commit(coordinator, answer())
    producer, before = begun(coordinator), len(coordinator.log)
    refused = coordinator.end(producer, answer=answer(content=b"other"))
    assert isinstance(refused, AnsweredBefore)
    assert refused.answer.content == b"[]"
    assert len(coordinator.log) == before
    coordinator.ended(producer, commit=False)
    assert coordinator.state() is TransactionState.PREPARE_ABORT


def test_repeated_commit_is_no_second_one(coordinator: TransactionCoordinator) -> None:
    producer = begun(coordinator)
    coordinator.ended(producer, answer=answer())
    coordinator.write_markers()
    assert coordinator.ended(producer, answer=answer()) == after(producer)


def test_transaction_that_somebody_else_has_committed_has_no_answer(coordinator: TransactionCoordinator) -> None:
    producer = begun(coordinator)
    coordinator.ended(producer)
    coordinator.write_markers()
    assert kind_of(coordinator.end(producer, answer=answer())) is ErrorKind.INVALID_TXN_STATE
    assert found(coordinator) is None


def test_aborted_transaction_leaves_no_answer(coordinator: TransactionCoordinator) -> None:
    coordinator.ended(begun(coordinator), commit=False, answer=answer())
    coordinator.write_markers()
    begun(coordinator)
    coordinator.advance(TIMEOUT_MS)
    assert found(coordinator) is None


@pytest.mark.parametrize("fails_over", [True, False])
def test_answer_expires(coordinator: TransactionCoordinator, fails_over: bool) -> None:
    commit(coordinator, answer())
    coordinator.advance(RETENTION_MS - 1)
    if fails_over:
        coordinator.fail_over()
    assert found(coordinator) is not None
    coordinator.advance(1)
    assert found(coordinator) is None
    coordinator.fail_over()
    assert found(coordinator) is None
    commit(coordinator, answer(content=b"again"))
    assert found(coordinator).content == b"again"
    coordinator.advance(RETENTION_MS - 1)
    assert found(coordinator) is not None


def test_retention_follows_the_wall_clock(coordinator: TransactionCoordinator) -> None:
    commit(coordinator, answer())
    for by_ms in (10 * RETENTION_MS, -20 * RETENTION_MS):
        coordinator.set_clock(by_ms)
        coordinator.advance(RETENTION_MS // 4)
        assert found(coordinator) is not None
    coordinator.fail_over()
    coordinator.advance(RETENTION_MS - 1)
    assert found(coordinator) is not None
    coordinator.advance(1)
    assert found(coordinator) is None


def test_new_ids_are_refused_while_there_is_no_room() -> None:
    coordinator = TransactionCoordinator(answer_retention_ms=RETENTION_MS, max_answers_bytes=1_000)
    commit(coordinator, answer("a", b"x" * 400))
    assert kind_of(coordinator.end(begun(coordinator), answer=answer("b"))) is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    assert kind_of(found(coordinator, "b")) is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    assert found(coordinator, "a") is not None
    assert coordinator.state() is TransactionState.ONGOING
    coordinator.fail_over()
    assert kind_of(found(coordinator, "b")) is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    coordinator.advance(RETENTION_MS)
    coordinator.write_markers()
    assert found(coordinator, "b") is None
    commit(coordinator, answer("b"))


def test_ids_and_answers_have_limits(coordinator: TransactionCoordinator) -> None:
    assert kind_of(found(coordinator, "")) is ErrorKind.INVALID_REQUEST
    assert kind_of(found(coordinator, "ä" * (LONGEST_ID_BYTES // 2 + 1))) is ErrorKind.INVALID_REQUEST
    producer = begun(coordinator)
    refused = coordinator.end(producer, answer=answer(content=bytes(LONGEST_CONTENT_BYTES + 1)))
    assert kind_of(refused) is ErrorKind.POLICY_VIOLATION
    coordinator.ended(producer, answer=answer(content=bytes(LONGEST_CONTENT_BYTES)))


def test_many_answers_expire_in_parts() -> None:
    coordinator = TransactionCoordinator(answer_retention_ms=RETENTION_MS, max_expired_bytes=100)
    for number in range(50):
        commit(coordinator, answer(f"request-{number}"))
    coordinator.now_ms += RETENTION_MS
    before = len(coordinator.log)
    coordinator.expire()
    assert 0 < len(coordinator.log) - before < 10
    coordinator.advance(0)
    assert len(coordinator.machine.answers) == 0
    assert coordinator.machine.answers.size_bytes == 0


def test_records_of_answers_are_no_records_of_transactional_ids() -> None:
    stored = StoredAnswer(digest=b"d", content=b"c", answered_ms=7)
    record = answer_record(AnswerKey("ä"), stored)
    assert record.key == b"\x43\x56\x00\x02\xc3\xa4"
    assert record.value is not None
    assert decode_answer_key(record.key) == AnswerKey("ä")
    assert decode_answer(record.value) == stored
    assert decode_transactional_id(record.key) is None
    assert decode_answer_key(transaction_record(ID, None).key or b"") is None
    assert answer_record(AnswerKey("ä"), None).value is None
    with pytest.raises(StorageFailure):
        decode_answer(b"\x00\x01" + record.value[2:])


def test_each_user_has_ids_of_its_own(coordinator: TransactionCoordinator) -> None:
    users = "", "User:alice", "User:bob"
    for user in users[1:]:
        commit(coordinator, answer(content=user.encode(), owner=user))
    assert found(coordinator) is None
    commit(coordinator, answer())
    coordinator.fail_over()
    contents = [found(coordinator, owner=user).content for user in users]
    assert contents == [b"[]", b"User:alice", b"User:bob"]
    refused = coordinator.end(begun(coordinator), answer=answer(owner="User:bob"))
    assert isinstance(refused, AnsweredBefore)
    coordinator.advance(RETENTION_MS)
    assert [found(coordinator, owner=user) for user in users] == [None] * 3
    assert coordinator.machine.answers.size_bytes == 0


def test_answer_of_an_earlier_version_is_found_by_its_user(coordinator: TransactionCoordinator) -> None:
    """Nothing tells whose it is, so it counts for the same request only."""
    commit(coordinator, answer())
    assert found(coordinator, owner="User:alice").content == b"[]"
    assert found(coordinator, owner="User:alice", digest=b"other") is None
    commit(coordinator, answer(content=b"other", owner="User:alice"))
    assert found(coordinator, owner="User:alice").content == b"other"


def test_record_of_a_users_answer_begins_as_that_of_the_id_alone() -> None:
    """Earlier versions read no more of the key, and find the answer."""
    key = AnswerKey("x", "User:alice")
    alone, owned = answer_record(AnswerKey("x"), None).key, answer_record(key, None).key
    assert alone is not None
    assert owned == alone + b"\x00\x0aUser:alice"
    assert decode_answer_key(owned) == key
