"""Acknowledges messages in transactions, at the leader of their partition: this broker or another one.

The partition of the queue's state takes part in the transaction; see `participants`.
"""

from uuid import UUID

import msgspec

from conveyor.broker.coordinators.participants import Participants
from conveyor.broker.produce.outgoing_message import Transaction
from conveyor.broker.queues.queue_calls import QueueCalls, QueuePlace, place_of
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.kernel.access.caller import Caller
from conveyor.queues.queue_commands import AcknowledgeInTransaction, Settled, Target
from conveyor.queues.subscription.policy import Subscription


class AcksInTransaction(msgspec.Struct, frozen=True, array_like=True):
    """Acknowledge messages of one partition for a subscription in a transaction."""

    place: QueuePlace
    subscription_id: UUID
    targets: tuple[Target, ...]
    transaction: Transaction


_ACKNOWLEDGE: Call[AcksInTransaction, Settled] = Call(
    "queue.acknowledge_in_transaction", AcksInTransaction, Settled, is_repeatable=True
)


class TransactionalAcks:
    def __init__(self, calls: QueueCalls, participants: Participants, leaders: LeaderCalls) -> None:
        self._calls = calls
        self._participants = participants
        self._leaders = leaders
        leaders.handlers.register(_ACKNOWLEDGE, self._ask_here)

    async def ask(
        self,
        caller: Caller,
        subscription: Subscription,
        number: int,
        targets: tuple[Target, ...],
        transaction: Transaction,
    ) -> Settled:
        """Acknowledge messages of one partition, all of them or none. May be repeated. Raises RequestError: see
        `Participants.ask`.
        """
        place = place_of(subscription, number)
        request = AcksInTransaction(place, subscription.id, targets, transaction)
        return await self._leaders.ask(caller, _ACKNOWLEDGE, place.topic, number, request)

    async def _ask_here(self, caller: Caller, request: AcksInTransaction) -> Settled:
        transaction = request.transaction
        command = AcknowledgeInTransaction(
            subscription=request.subscription_id, targets=request.targets, producer=transaction.producer
        )
        queue = await self._calls.begun(request.place, request.subscription_id)
        return await self._participants.ask(caller, queue, command, transaction, adds=True)
