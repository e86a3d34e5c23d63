"""Lets the machines of partitions take part in transactions. For each command, in this order:

    older epoch than the partition knows         -> INVALID_PRODUCER_EPOCH
    its transaction is open in the partition     -> ask the machine
    otherwise                                    -> ask the coordinator whether the partition takes part, then as above

The check is repeated in the tick of the append; see `verification`. Sources: KIP-98, KIP-890.
"""

from collections.abc import Awaitable, Callable

from conveyor.broker.answers import Answer
from conveyor.broker.produce.verification import Verifications, refusal
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.replication.partition import Partition

_REPEATS = ErrorKind.COORDINATOR_LOADING
"""A client of a machine repeats a request after this error. Source: Kafka's GroupCoordinatorService."""


class Participants:
    """See the module's docstring."""

    def __init__(self, verifications: Verifications) -> None:
        self._verifications = verifications

    async def ask(
        self,
        partition: Partition,
        transactional_id: str,
        producer: ProducerIdentity,
        ask: Callable[[], Awaitable[Answer]],
        is_running: Callable[[], bool],
        *,
        adds: bool,
    ) -> Answer:
        """Ask the machine of a partition in the transaction of a producer.

        is_running: whether `ask` still asks the machine that runs. adds: let the partition take part, as of transaction
        version 2.
        Raises RequestError: TRANSACTION_ABORTABLE if the partition takes no part in the transaction;
        COORDINATOR_LOADING if the request is to be repeated.
        """
        if partition.log.producers.has_open(*producer):
            return await ask()
        verification = self._verifications.begin(partition, producer)
        try:
            await self._check_takes_part(partition, transactional_id, producer, adds)
            if not verification.is_valid or not is_running():
                raise RequestError(_REPEATS, "the transaction may have ended meanwhile: repeat the request")
            return await ask()
        finally:
            self._verifications.end(verification)

    async def _check_takes_part(
        self, partition: Partition, transactional_id: str, producer: ProducerIdentity, adds: bool
    ) -> None:
        partition.log.producers.check_epoch(producer)
        [refused] = await self._verifications.ask(
            transactional_id, producer, [partition.identity], adds=adds, repeats=_REPEATS
        )
        if refused is not None:
            raise refused
        try:
            partition.log.producers.check_participant(producer)
        except RequestError as error:
            raise refusal(error, _REPEATS) from error
