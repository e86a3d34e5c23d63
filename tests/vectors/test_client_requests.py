"""What real clients send over TCP is read to its last byte; `tests/vectors/capture/clients.py` has listened to them."""

import json

import pytest

from conveyor.kafka_api.wire.versions import API_VERSIONS_KEY, SERVED_APIS
from tests.vectors.recorded import FOLDER
from tests.vectors.wire import read_request

SENT = [
    (each["client"], each["key"], each["version"], bytes.fromhex(each["hex"]))
    for each in json.loads((FOLDER / "clients.json").read_text())
]
SERVED = [each for each in SENT if each[2] <= SERVED_APIS[each[1]].max_version]


@pytest.mark.parametrize(
    ("key", "version", "frame"), [pytest.param(*each[1:], id=f"{each[0]}-{each[1]}-v{each[2]}") for each in SERVED]
)
def test_request_is_read_to_its_last_byte(key: int, version: int, frame: bytes) -> None:
    header, _ = read_request(key, version, frame)
    assert (header.request_api_key, header.request_api_version) == (key, version)


def test_clients_send_versions_that_are_not_served_only_to_ask_which_are() -> None:
    assert {each[1] for each in SENT if each not in SERVED} <= {API_VERSIONS_KEY}
