"""Commits a stream's progress as the offsets of a consumer group, where users look for lag."""

import time

from pyspark_conveyor.brokers.error_codes import COORDINATOR_MOVED, error_name
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import Bounds

_PATIENCE_S = 10.0
_RETRY_S = 0.1
_GROUP_KEY = 0


def commit_progress(client: RawClient, group: str, done: Bounds) -> None:
    """Commit the next offsets to read. Raises PipelineError if the group has members, or refuses."""
    from kafka.protocol.consumer import OffsetCommitRequest

    kinds = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [
        kinds(
            name=topic,
            partitions=[
                kinds.OffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
                )
                for number, offset in numbers.items()
            ],
        )
        for topic, numbers in done.items()
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics, max_version=9
    )
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        response = client.ask(request, client.coordinator(group))
        codes = {partition.error_code for topic in response.topics for partition in topic.partitions} - {0}
        if not codes:
            return
        if codes <= COORDINATOR_MOVED and time.monotonic() < deadline:
            client.forget_leaders()
            time.sleep(_RETRY_S)
            continue
        raise PipelineError(
            f"group '{group}' refuses the stream's progress ({error_name(min(codes))}):"
            " name a group that has no members"
        )
