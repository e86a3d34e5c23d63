"""A bitmap of offsets behaves like a set."""

from hypothesis import given
from hypothesis import strategies as st

from conveyor.queues.delivery.offset_bitmap import OffsetBitmap

OFFSETS = st.integers(0, 20) | st.sampled_from([4_095, 4_096, 8_191, 8_192, 1 << 50])


@given(st.lists(st.tuples(st.booleans(), OFFSETS)))
def test_members_and_the_first_are_those_of_a_set(changes: list[tuple[bool, int]]) -> None:
    bitmap, members = OffsetBitmap(), set[int]()
    for is_added, offset in changes:
        if is_added:
            bitmap.add(offset)
            members.add(offset)
        else:
            bitmap.remove(offset)
            members.discard(offset)
        assert (offset in bitmap) == is_added
        assert bitmap.first() == min(members, default=None)
    assert all(offset in bitmap for offset in members)
