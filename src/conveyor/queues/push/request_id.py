"""The id of a push request: the same at each attempt to deliver the same messages, and no other request has it."""

import hashlib
from collections.abc import Sequence
from uuid import UUID

from conveyor.records.message import Message


def request_id(topic_id: UUID, messages: Sequence[Message]) -> str:
    """Return the id of a request. A topic's id is part of it, because a topic that was created again repeats the ids of
    messages. Several messages have the hash of their ids: a batch that is put together otherwise has another one.
    """
    if len(messages) == 1:
        return f"msg_{topic_id.hex}_{messages[0].partition}_{messages[0].offset}"
    ids = " ".join(message.message_id for message in messages)
    return f"batch_{hashlib.sha256(f'{topic_id.hex} {ids}'.encode()).hexdigest()[:40]}"
