"""Generates cluster ids as Kafka does: a random UUID as 22 characters of URL-safe base64."""

from base64 import urlsafe_b64encode

from conveyor.kernel.ids import NewId


def new_cluster_id(new_id: NewId) -> str:
    """Return a new id. As in Kafka, it never starts with '-', which command line tools would read as an option."""
    while (cluster_id := urlsafe_b64encode(new_id().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster_id
