"""The settings of SQS: their values, and that keys need users."""

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.settings.tree import from_sources


def test_keys_need_users() -> None:
    assert from_sources({"sqs.keys_file": "keys", "network.http_users": True}).sqs.keys_file == "keys"
    with pytest.raises(SettingsError, match=r"sqs\.keys_file has no effect without users: set network\.http_users"):
        from_sources({"sqs.keys_file": "keys"})


@pytest.mark.parametrize("endpoint", ["http://h:1/path", "h:1", "ftp://h", "http://"])
def test_endpoint_is_a_url_without_a_path(endpoint: str) -> None:
    assert from_sources({"sqs.endpoint": "https://[::1]:9000"}).sqs.endpoint
    with pytest.raises(SettingsError):
        from_sources({"sqs.endpoint": endpoint})
