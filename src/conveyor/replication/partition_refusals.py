"""The errors with which a partition refuses a request, or ends a wait."""

from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.replication.roles import Leader, Role

COMMIT_TIMEOUT_MS = 15_000
"""See `commit_deadline`."""


def not_leader(identity: TopicPartition, role: Role) -> NotLeader:
    """Return the error of a broker that follows."""
    leads = "no broker" if role.leader is None else f"broker {role.leader}"
    return NotLeader(f"{identity} is led by {leads} in epoch {role.epoch}", role.leader, role.epoch)


def leadership_uncertain(identity: TopicPartition, role: Leader) -> NotLeader:
    """Return the error of a broker that cannot be sure that it still leads."""
    return NotLeader(f"{identity}: another broker may lead it by now", None, role.epoch)


def isr_too_small(identity: TopicPartition, count: int, needed: int) -> RequestError:
    """Return the error of a request that was refused before anything was appended."""
    replicas = f"{count} in-sync replica{'' if count == 1 else 's'}"
    return RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, f"{identity} has {replicas}, min.insync.replicas is {needed}")


def commits_stalled(identity: TopicPartition) -> RequestError:
    """Return the error of a request that was refused, because earlier ones have not been committed for long."""
    message = f"{identity} has not committed earlier records for {COMMIT_TIMEOUT_MS // 1000} seconds: retry later"
    return RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, message)


def isr_shrank(identity: TopicPartition) -> RequestError:
    """Return the error of a client whose records may still be committed, once replicas are in sync again."""
    message = f"{identity}: records were stored, and too few replicas are in sync to commit them"
    return RequestError(ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)


def commit_overdue(identity: TopicPartition) -> RequestError:
    """Return the error of a client whose records are stored and may still be committed."""
    message = f"{identity}: records were stored, and not committed within {COMMIT_TIMEOUT_MS // 1000} seconds"
    return RequestError(ErrorKind.REQUEST_TIMED_OUT, message)
