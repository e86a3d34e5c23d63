"""The question whether partitions take part in a transaction is asked again while the earlier one ends."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from conveyor.broker.produce import verification
from conveyor.broker.produce.verification import Verifications, VerifyPartitions
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition
from tests.callers import CALLER

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
ENDING, FENCED = ErrorKind.CONCURRENT_TRANSACTIONS, ErrorKind.PRODUCER_FENCED


class Coordinator:
    """Answers each question with the same error for all partitions, the last one again and again."""

    def __init__(self, *answers: ErrorKind | None) -> None:
        self.answers = list(answers)
        self.questions: list[VerifyPartitions] = []

    async def ask(self, *question: Any) -> list[RequestError | None]:
        self.questions.append(question[4])
        kind = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [None if kind is None else RequestError(kind, "no")] * len(PLACES)


async def asked(coordinator: Coordinator, *, adds: bool) -> list[ErrorKind | None]:
    image = SimpleNamespace(topics={TRANSACTIONS_TOPIC: SimpleNamespace(partitions=(None,))})
    services = cast("Services", SimpleNamespace(metadata=SimpleNamespace(image=image)))
    verifications = Verifications(services, cast("LeaderCalls", coordinator))
    producer = ProducerIdentity(ProducerId(5), ProducerEpoch(1))
    errors = await verifications.ask(CALLER, "id", producer, PLACES, adds=adds, repeats=ErrorKind.NOT_ENOUGH_REPLICAS)
    assert len({id(question) for question in coordinator.questions}) == 1, "the question is the same"
    return [None if error is None else error.kind for error in errors]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_PAUSE_S", 0)


async def test_partitions_take_part_once_the_earlier_transaction_has_ended() -> None:
    coordinator = Coordinator(ENDING, ENDING, None)
    assert await asked(coordinator, adds=True) == [None, None]
    assert len(coordinator.questions) == 3


async def test_client_repeats_its_request_if_the_earlier_transaction_does_not_end() -> None:
    coordinator = Coordinator(ENDING)
    assert await asked(coordinator, adds=True) == [ErrorKind.NOT_ENOUGH_REPLICAS] * 2
    assert len(coordinator.questions) == 6


@pytest.mark.parametrize(
    ("answers", "adds", "kind"),
    [
        ((None,), True, None),
        ((FENCED,), True, ErrorKind.INVALID_PRODUCER_EPOCH),
        ((ENDING,), False, ErrorKind.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_any_other_answer_counts_at_once(
    answers: tuple[ErrorKind | None, ...], adds: bool, kind: ErrorKind | None
) -> None:
    coordinator = Coordinator(*answers)
    assert await asked(coordinator, adds=adds) == [kind] * 2
    assert len(coordinator.questions) == 1
