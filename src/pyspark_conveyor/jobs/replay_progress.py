"""The progress of a named replay: the offset of a group, whose metadata identifies the replay's plan."""

from typing import Any

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.pipeline_errors import PipelineError

_TIMEOUT_S = 30.0


class ReplayProgress:
    """The progress of one job. Every method raises PipelineError."""

    def __init__(self, brokers: Brokers, job_id: str, topic: str, fingerprint: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(brokers.confluent | {"log_level": 0})
        self._job_id = job_id
        self._group = f"conveyor.replay.{job_id}"
        self._topic = topic
        self._fingerprint = fingerprint

    def slices_written(self) -> int:
        """Return the number of slices that are written. Pins the plan of a new job, and refuses another plan."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        asked = ConsumerGroupTopicPartitions(self._group, [TopicPartition(self._topic, 0)])
        place = self._place(self._admin.list_consumer_group_offsets([asked], require_stable=True))
        if place.offset < 0:
            self.note(0)
            return 0
        if (place.metadata or "").rstrip("\0") != self._fingerprint:
            raise PipelineError(
                f"job '{self._job_id}' has begun with other options or another state of the lake: repeat it as it was,"
                " or give another --job-id"
            )
        return int(place.offset)

    def note(self, slices: int) -> None:
        """Remember that so many slices are written."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        place = TopicPartition(self._topic, 0, slices, self._fingerprint)
        self._place(self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self._group, [place])]))

    def _place(self, futures: dict[str, Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            place = futures[self._group].result(_TIMEOUT_S).topic_partitions[0]
        except KafkaException as error:
            raise PipelineError(f"the progress of job '{self._job_id}': {error.args[0].str()}") from error
        if place.error is not None:
            raise PipelineError(f"the progress of job '{self._job_id}': {place.error.str()}")
        return place
