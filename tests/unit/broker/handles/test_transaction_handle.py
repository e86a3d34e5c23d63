"""Only handles that a broker of the cluster has signed name a transaction."""

from uuid import UUID, uuid4

import pytest

from conveyor.broker.handles.transaction_handle import HandleKey, SlotName, decode_handle, encode_handle
from conveyor.kernel.errors import ErrorKind, RequestError, StoreUnreachable
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.testing.memory_store import MemoryStore

KEY = bytes(range(32))
SLOT = SlotName(7, UUID(int=5), 12)
PRODUCER = ProducerIdentity(ProducerId(1 << 40), ProducerEpoch(32_766))
HANDLE = encode_handle(SLOT, PRODUCER, KEY)


def refused(text: str, key: bytes = KEY) -> ErrorKind:
    with pytest.raises(RequestError) as refusal:
        decode_handle(text, key)
    return refusal.value.kind


def test_handle_names_the_producer_and_its_transactional_id() -> None:
    transaction = decode_handle(HANDLE, KEY)
    assert transaction.producer == PRODUCER
    assert transaction.transactional_id == f"__rest.7.{31 * '0'}5.12"
    assert len(HANDLE) == 68


def test_handle_of_the_largest_numbers() -> None:
    slot = SlotName((1 << 31) - 1, UUID(int=(1 << 128) - 1), (1 << 32) - 1)
    producer = ProducerIdentity(ProducerId((1 << 63) - 1), ProducerEpoch(0))
    transaction = decode_handle(encode_handle(slot, producer, KEY), KEY)
    assert (transaction.transactional_id, transaction.producer) == (slot.transactional_id, producer)


@pytest.mark.parametrize("place", range(len(HANDLE)))
def test_changed_handle_is_unknown(place: int) -> None:
    other = "A" if HANDLE[place] != "A" else "B"
    assert refused(HANDLE[:place] + other + HANDLE[place + 1 :]) is ErrorKind.UNKNOWN_TRANSACTION


@pytest.mark.parametrize(
    "text", ["", "x", HANDLE[:-1], HANDLE + "A", HANDLE + "=", "é" * 68, "\udc80" * 68, "=" * 68, "/" * 68, "A" * 68]
)
def test_other_text_is_unknown(text: str) -> None:
    assert refused(text) is ErrorKind.UNKNOWN_TRANSACTION


def test_handle_of_another_cluster_is_unknown() -> None:
    assert refused(HANDLE, bytes(32)) is ErrorKind.UNKNOWN_TRANSACTION


async def test_brokers_of_a_cluster_have_the_same_key_and_others_another() -> None:
    store = MemoryStore()
    keys = [await HandleKey(each, uuid4).get() for each in (store, store, MemoryStore())]
    assert keys[0] == keys[1] != keys[2]


async def test_key_is_read_again_after_the_store_was_away() -> None:
    class Away(MemoryStore):
        is_away = True

        async def get(self, path: str, watch: object = None) -> object:  # type: ignore[override]
            if self.is_away:
                raise StoreUnreachable("away")
            return await super().get(path)

    store = Away()
    key = HandleKey(store, uuid4)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as refusal:
        await key.get()
    assert refusal.value.kind is ErrorKind.METADATA_UNAVAILABLE
    store.is_away = False
    assert await key.get()
