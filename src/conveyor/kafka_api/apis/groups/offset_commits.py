"""Reads the offsets of a request, and renders the results of its partitions, for OffsetCommit and TxnOffsetCommit."""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

from conveyor.groups.group_commands import OffsetToCommit
from conveyor.groups.replies import Committed
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError


class RequestedOffsets:
    """The offsets of a request, in order. Those of unknown partitions are answered with UNKNOWN_TOPIC.

    by_id: whether the request has the ids of topics instead of their names.
    """

    def __init__(self, call: KafkaCall, *, by_id: bool) -> None:
        self._topics = call.request.topics
        self._by_id = by_id
        image = call.broker.metadata.image
        names = [image.names_by_id.get(topic.topic_id, "") if by_id else topic.name for topic in self._topics]
        offsets = [offset for topic, name in zip(self._topics, names, strict=True) for offset in _offsets(topic, name)]
        self._exist = [image.partition(offset.topic, offset.partition) is not None for offset in offsets]
        self.to_commit = tuple(offset for offset, exists in zip(offsets, self._exist, strict=True) if exists)

    def results(
        self, reply: Committed | RequestError, code: Callable[[RequestError | None], int]
    ) -> list[dict[str, Any]]:
        """Return the results of all topics, for a response. code: returns the code of an error."""
        if isinstance(reply, RequestError):
            errors: Iterator[RequestError | None] = repeat(reply)
        else:
            errors = iter(self._errors(reply.errors))
        return [
            ({"topic_id": topic.topic_id} if self._by_id else {"name": topic.name})
            | {
                "partitions": [
                    {"partition_index": partition.partition_index, "error_code": code(next(errors))}
                    for partition in topic.partitions
                ]
            }
            for topic in self._topics
        ]

    def _errors(self, committed: Sequence[RequestError | None]) -> list[RequestError | None]:
        unknown = RequestError(ErrorKind.UNKNOWN_TOPIC, "there is no such topic or partition")
        following = iter(committed)
        return [next(following) if exists else unknown for exists in self._exist]


def _offsets(topic: Any, name: str) -> list[OffsetToCommit]:
    return [
        OffsetToCommit(
            topic=name,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=getattr(partition, "committed_leader_epoch", -1),
            metadata=partition.committed_metadata or "",
        )
        for partition in topic.partitions
    ]
