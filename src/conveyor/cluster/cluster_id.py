"""The id of a new cluster, as Kafka makes it: a random UUID in 22 characters of URL-safe base64."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from uuid import UUID


def new_cluster_id(new_id: Callable[[], UUID]) -> str:
    """Drawn again while it starts with '-': command line tools would take it for an option, so Kafka has none such."""
    while (cluster_id := urlsafe_b64encode(new_id().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster_id
