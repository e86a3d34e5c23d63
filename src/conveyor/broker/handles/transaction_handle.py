"""The handle of a transaction, by which clients name it. It is signed: no client can make one up.

    0  version      uint8, 1      21  slot               uint32
    1  node id      uint32        25  producer id        int64
    5  start id     16 bytes      33  producer epoch     int16
                                  35  HMAC-SHA256 of bytes 0 to 34, its first 16 bytes

in base64 for URLs: 68 characters. Node id, start id and slot name the producer's slot: see `transactional_id`. Every
broker of the cluster can check a handle, because the key is derived from the secret of the cluster.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from conveyor.broker.metadata.cluster_secret import cluster_secret
from conveyor.broker.produce.outgoing_message import Transaction
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import NodeId, ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.kernel.ports import MetadataStore

_VERSION = 1
_FIELDS = Struct(">BI16sIqh")
_TAG_BYTES = 16
_TEXT_LENGTH = (_FIELDS.size + _TAG_BYTES) // 3 * 4
_PURPOSE = b"transaction handle"
_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


class SlotName(NamedTuple):
    """The slot of a producer. start_id: of the broker's start, so that a broker never uses slots of an earlier start,
    whose transactions may be open.
    """

    node_id: int
    start_id: UUID
    number: int

    @property
    def transactional_id(self) -> str:
        return f"__rest.{self.node_id}.{self.start_id.hex}.{self.number}"


def lender_of(transactional_id: str) -> NodeId:
    """Return the broker that has given a handle, by the transactional id of its slot."""
    return NodeId(int(transactional_id.split(".")[1]))


class HandleKey:
    """The key that signs handles. The first use reads it from the metadata store. new_id: must be unpredictable."""

    def __init__(self, store: MetadataStore, new_id: Callable[[], UUID]) -> None:
        self._store = store
        self._new_id = new_id
        self._key: bytes | None = None

    async def get(self) -> bytes:
        """Return the key. Raises RequestError (METADATA_UNAVAILABLE)."""
        if self._key is None:
            try:
                secret = await cluster_secret(self._store, self._new_id)
            except StorageFailure as failure:
                reason = f"the key of transaction handles cannot be read: {failure}"
                raise RequestError(ErrorKind.METADATA_UNAVAILABLE, reason) from failure
            self._key = hmac.digest(secret, _PURPOSE, "sha256")
        return self._key


def encode_handle(slot: SlotName, producer: ProducerIdentity, key: bytes) -> str:
    fields = _FIELDS.pack(_VERSION, slot.node_id, slot.start_id.bytes, slot.number, *producer)
    return urlsafe_b64encode(fields + _tag(fields, key)).decode()


def decode_handle(text: str, key: bytes) -> Transaction:
    """Return the transaction that a handle names. Raises RequestError (UNKNOWN_TRANSACTION)."""
    content = urlsafe_b64decode(text) if len(text) == _TEXT_LENGTH and _ALPHABET.issuperset(text) else b""
    fields, tag = content[: _FIELDS.size], content[_FIELDS.size :]
    if not content or not hmac.compare_digest(tag, _tag(fields, key)) or fields[0] != _VERSION:
        raise RequestError(ErrorKind.UNKNOWN_TRANSACTION, "this is not the id of a transaction of this cluster")
    _, node_id, start_id, number, producer_id, producer_epoch = _FIELDS.unpack(fields)
    slot = SlotName(node_id, UUID(bytes=start_id), number)
    producer = ProducerIdentity(ProducerId(producer_id), ProducerEpoch(producer_epoch))
    return Transaction(slot.transactional_id, producer)


def _tag(fields: bytes, key: bytes) -> bytes:
    return hmac.digest(key, fields, "sha256")[:_TAG_BYTES]
