"""Messages and their ids."""

import pytest

from conveyor.records.message import Message, is_message_id, parse_message_id


def test_message_id_names_the_place_and_is_read_back() -> None:
    message = Message("orders", 3, 42, 0, None, None)
    assert message.message_id == "3-42"
    assert parse_message_id(message.message_id) == (3, 42)


@pytest.mark.parametrize("text", ["", "3", "3-", "-3", "3-4-5", "a-1", "1-i4", " 1-2", "1-2\n", "٣-٤", "1-" + "9" * 20])
def test_other_texts_are_no_message_ids(text: str) -> None:
    assert not is_message_id(text)
    with pytest.raises(ValueError, match="<partition>-<offset>"):
        parse_message_id(text)


def test_tag_is_the_last_header_of_its_name() -> None:
    headers = (("conveyor-tag", b"old"), ("x", b"y"), ("conveyor-tag", b"n\xffw"))
    assert Message("t", 0, 0, 0, None, None, headers).tag == "n�w"
    assert Message("t", 0, 0, 0, None, None).tag is None
