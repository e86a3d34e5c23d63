"""Decides on changes of schedules. Pure; see `topic_decisions`. The document of a schedule is opaque here."""

from conveyor.cluster.changes import SchedulePut, ScheduleRemoved
from conveyor.cluster.image import ClusterImage, ScheduleImage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId


def existing_schedule(image: ClusterImage, name: str) -> ScheduleImage:
    """Return the schedule of this name. Raises RequestError (UNKNOWN_SCHEDULE)."""
    schedule = image.schedules.get(name)
    if schedule is None:
        raise RequestError(ErrorKind.UNKNOWN_SCHEDULE, f"there is no schedule '{name}'")
    return schedule


def is_fired_by(image: ClusterImage, schedule: ScheduleImage, node_id: NodeId) -> bool:
    """Return whether a broker fires a schedule: it leads partition 0 of the topic."""
    topic = image.topic_by_id(schedule.topic_id)
    return topic is not None and topic.partitions[0].leader == node_id


def added_schedule(image: ClusterImage, put: SchedulePut) -> list[SchedulePut]:
    """Begin a schedule. Raises RequestError (SCHEDULE_ALREADY_EXISTS)."""
    if put.name in image.schedules:
        raise RequestError(
            ErrorKind.SCHEDULE_ALREADY_EXISTS,
            f"schedule '{put.name}' exists already: change it, or remove it first",
        )
    return [put]


def completed_firing(image: ClusterImage, document: str, put: SchedulePut, node_id: NodeId) -> list[SchedulePut]:
    """Record a completed firing, if the schedule still has this document and this broker still fires it."""
    stored = image.schedules.get(put.name)
    if stored is None or stored.document != document or not is_fired_by(image, stored, node_id):
        return []
    return [put]


def removed_schedule(image: ClusterImage, name: str) -> list[ScheduleRemoved]:
    """End a schedule. Raises RequestError (UNKNOWN_SCHEDULE)."""
    existing_schedule(image, name)
    return [ScheduleRemoved(name=name)]
