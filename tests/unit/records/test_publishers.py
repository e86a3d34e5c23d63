"""The header of a record's publisher: set in place of any other, and believed only if a broker has set it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel.access.caller import ANONYMOUS, HTTP, Caller, Principal, PrincipalType
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.records import compression
from conveyor.records.batch import NAMES_PUBLISHER, TRANSACTIONAL, batch_is_intact, read_header
from conveyor.records.checked_batch import (
    check_batch,
    check_broker_batch,
    check_transactional_batch,
    own_batch,
)
from conveyor.records.message_attributes import (
    DELAY_MS,
    PUBLISHER,
    TAG,
    check_attributes,
    may_have_attributes,
)
from conveyor.records.publishers import name_publisher, publisher_of, true_headers
from conveyor.records.record import (
    MAX_HEADERS,
    UnreadableBatch,
    decode_records,
    encode_batch,
    set_header,
    unpacked_records,
)
from conveyor.records.repack import pack_batch
from conveyor.settings.tree import TopicSettings
from tests.lying_batches import LIES, NOW_MS, RawHeader, raw_record, sealed

ROOM = 1 << 20
ALICE = b"User:alice"
FORGED = (PUBLISHER.encode(), b"User:root")

texts = st.none() | st.binary(max_size=6) | st.sampled_from([b"\x80", b"\xff\x80", b"\x02"])
headers_of_records = st.lists(
    st.tuples(st.sampled_from([b"a", b"\xff", PUBLISHER.encode(), PUBLISHER.encode() + b"s"]), texts), max_size=3
)
records_of_batches = st.lists(
    st.tuples(texts, texts, headers_of_records, st.integers(-(1 << 40), 1 << 40), st.integers(0, 4)), min_size=1
)


def named(batch: bytes, publisher: bytes) -> bytes:
    header, content = unpacked_records(batch)
    return bytes(pack_batch(*name_publisher(header, content, publisher), TopicSettings()).content)


@given(records_of_batches, st.sampled_from([ALICE, b""]))
def test_records_keep_all_but_the_header(
    records: list[tuple[bytes | None, bytes | None, list[RawHeader], int, int]], publisher: bytes
) -> None:
    """Also where numbers take more bytes than they need, as no encoder writes them but any client may."""
    content = b"".join(
        raw_record(delta, key=key, value=value, headers=headers, timestamp_delta=delta_ms, width=width)
        for delta, (key, value, headers, delta_ms, width) in enumerate(records)
    )
    batch = sealed(content, len(records))
    before, after = list(decode_records(batch)), list(decode_records(named(batch, publisher)))
    name = ((PUBLISHER, publisher),) if publisher else ()
    for old, new in zip(before, after, strict=True):
        kept = tuple(header for header in old.headers if header[0] != PUBLISHER)
        assert new.headers == (*kept, *name)
        assert (new.offset, new.timestamp_ms, new.key, new.value) == (old.offset, old.timestamp_ms, old.key, old.value)


@pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)
def test_named_batch_keeps_codec_producer_and_times(codec: int) -> None:
    records = [(NOW_MS + number, b"k", b"v" * number, ()) for number in range(5)]
    sent = encode_batch(
        records, codec=codec, attributes=TRANSACTIONAL, producer_id=7, producer_epoch=2, base_sequence=9
    )
    stored_bytes = named(sent, ALICE)
    assert batch_is_intact(stored_bytes)
    stored = read_header(stored_bytes)
    before = read_header(sent)
    changed = {"batch_length", "crc", "attributes"}
    assert [name for name in before._fields if getattr(before, name) != getattr(stored, name)] == [
        name for name in before._fields if name in changed
    ]
    assert stored.attributes == before.attributes | NAMES_PUBLISHER


def test_batch_of_nobody_is_left_alone_unless_it_has_the_name() -> None:
    plain = encode_batch([(NOW_MS, None, b"v", (("a", b"b"),))])
    header, content = unpacked_records(plain)
    assert name_publisher(header, content, b"") == (header, content)
    forged = sealed(raw_record(headers=[FORGED]), 1)
    assert next(decode_records(named(forged, b""))).headers == ()


@pytest.mark.parametrize("lie", LIES)
def test_lying_batch_is_refused_or_named(lie: str) -> None:
    try:
        header, content = unpacked_records(LIES[lie])
        named_header, named_content = name_publisher(header, content, ALICE)
    except (UnreadableBatch, RequestError):
        return
    records = list(decode_records(own_batch(pack_batch(named_header, named_content, TopicSettings()).content).content))
    assert all(record.headers[-1] == (PUBLISHER, ALICE) for record in records)


def test_record_with_the_most_headers_cannot_have_one_more() -> None:
    for count, is_refused in ((MAX_HEADERS, True), (MAX_HEADERS - 1, False)):
        batch = encode_batch([(NOW_MS, None, b"v", (("a", b""),) * count)])
        header, content = unpacked_records(batch)
        if is_refused:
            with pytest.raises(RequestError) as refused:
                set_header(header, content, PUBLISHER, ALICE)
            assert refused.value.kind is ErrorKind.INVALID_RECORD
        else:
            set_header(header, content, PUBLISHER, ALICE)


def test_named_records_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    header, content = unpacked_records(encode_batch([(NOW_MS, None, b"v", ())] * 100))
    monkeypatch.setattr(compression, "MAX_UNPACKED_BYTES", 1_000)
    with pytest.raises(RequestError) as refused:
        set_header(header, content, PUBLISHER, ALICE)
    assert refused.value.kind is ErrorKind.MESSAGE_TOO_LARGE


def test_only_brokers_say_that_the_publisher_is_named() -> None:
    records = [(NOW_MS, None, b"v", ((PUBLISHER, ALICE),))]
    plain = encode_batch(records, attributes=NAMES_PUBLISHER)
    attributes = TRANSACTIONAL | NAMES_PUBLISHER
    of_client = encode_batch(records, attributes=attributes, producer_id=7, producer_epoch=0, base_sequence=0)
    of_broker = encode_batch(records, attributes=attributes, producer_id=7, producer_epoch=0)
    for check, batch in ((check_batch, plain), (check_transactional_batch, of_client)):
        with pytest.raises(RequestError, match="only the broker names") as refused:
            check(batch, ROOM)
        assert refused.value.kind is ErrorKind.INVALID_RECORD
    assert check_broker_batch(plain, is_transactional=False).header.attributes == NAMES_PUBLISHER
    assert check_broker_batch(of_broker, is_transactional=True).header.attributes == attributes


def test_header_is_believed_only_where_a_broker_has_set_it() -> None:
    headers = (("a", b"1"), (PUBLISHER, ALICE), (PUBLISHER, None))
    assert true_headers(0, headers) == (("a", b"1"),)
    assert true_headers(TRANSACTIONAL, headers) == (("a", b"1"),)
    assert true_headers(NAMES_PUBLISHER, headers) is headers
    others = (("a", b"1"), (f"{PUBLISHER}s", b"2"), ("Conveyor-Publisher", b"3"))
    assert true_headers(0, others) is others


def test_publisher_is_the_user_and_of_a_broker_whoever_was_before() -> None:
    alice = Caller(Principal(PrincipalType.USER, "älice"), "192.0.2.1", HTTP, 1)
    assert publisher_of(alice) == "User:älice".encode()
    assert publisher_of(Caller(ANONYMOUS, "192.0.2.1", HTTP, 1)) == b""
    assert publisher_of(Caller.broker(NodeId(1))) is None


def test_client_that_names_a_publisher_over_rest_is_refused() -> None:
    for value in (b"User:alice", b"", None):
        with pytest.raises(RequestError, match="must be left out, as the broker sets it") as refused:
            check_attributes([(PUBLISHER, value)])
        assert refused.value.kind is ErrorKind.INVALID_REQUEST


def test_publisher_alone_is_no_attribute_of_a_queue() -> None:
    name, tag, delay = (PUBLISHER, ALICE), (TAG, b"t"), (DELAY_MS, b"1")
    for headers, may_have in (((), False), ((name,), False), ((name, tag), True), ((delay, name), True)):
        batch = encode_batch([(NOW_MS, None, b"v", headers), (NOW_MS, None, b"w", (name,))])
        assert may_have_attributes(batch) is may_have
