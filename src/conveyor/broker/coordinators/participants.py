"""Lets the machines of partitions take part in transactions. For each command, in this order:

    older epoch than the partition knows         -> INVALID_PRODUCER_EPOCH
    its transaction is open in the partition     -> ask the machine
    otherwise                                    -> ask the coordinator whether the partition takes part, then as above

The check is repeated in the tick of the append; see `verification`. Sources: KIP-98, KIP-890.
"""

from conveyor.broker.answers import Answer
from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.produce.outgoing_message import Transaction
from conveyor.broker.produce.verification import Verifications, refusal
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import Command
from conveyor.replication.partition import Partition

_REPEATS = ErrorKind.COORDINATOR_LOADING
"""A client of a machine repeats a request after this error. Source: Kafka's GroupCoordinatorService."""


class Participants:
    def __init__(self, verifications: Verifications) -> None:
        self._verifications = verifications

    async def ask(
        self, caller: Caller, runner: HostedMachine, command: Command[Answer], transaction: Transaction, *, adds: bool
    ) -> Answer:
        """Ask a machine, through its runner, in the transaction of a producer.

        adds: let the partition take part, as of transaction version 2.
        Raises RequestError: TRANSACTION_ABORTABLE if the partition takes no part in the transaction;
        COORDINATOR_LOADING if the request is to be repeated.
        """
        partition, producer = runner.partition, transaction.producer
        if partition.log.producers.has_open(*producer):
            return await runner.ask(command)
        verification = self._verifications.begin(partition, producer)
        try:
            await self._check_takes_part(caller, partition, transaction, adds=adds)
            if not verification.is_valid or runner.is_stopped:
                raise RequestError(_REPEATS, "the transaction may have ended meanwhile: repeat the request")
            return await runner.ask(command)
        finally:
            self._verifications.end(verification)

    async def _check_takes_part(
        self, caller: Caller, partition: Partition, transaction: Transaction, *, adds: bool
    ) -> None:
        transactional_id, producer = transaction
        partition.log.producers.check_epoch(producer)
        [refused] = await self._verifications.ask(
            caller, transactional_id, producer, [partition.identity], adds=adds, repeats=_REPEATS
        )
        if refused is not None:
            raise refused
        try:
            partition.log.producers.check_participant(producer)
        except RequestError as error:
            raise refusal(error, _REPEATS) from error
