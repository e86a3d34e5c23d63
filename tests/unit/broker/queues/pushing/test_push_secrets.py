"""The secrets of pushes in the metadata: where they may be, and who can read them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from conveyor.adapters.key_file import KeyFile
from conveyor.broker.queues.pushing.push_secrets import PushSecrets, SecretUnreadable
from conveyor.kernel.errors import RequestError
from conveyor.settings.tree import from_sources

ZOOKEEPER = {"broker.metadata": "zookeeper://localhost:2181/x"}


def secrets(keys: KeyFile | None, **settings: object) -> PushSecrets:
    services: Any = SimpleNamespace(new_id=uuid4, settings=from_sources(settings))
    return PushSecrets(services, keys)


def key_file(directory: Path, *digits: str) -> KeyFile:
    path = directory / f"{''.join(digits)}.keys"
    path.touch(0o600)
    path.write_text("\n".join(digit * 64 for digit in digits))
    return KeyFile(path)


def test_secret_is_stored_as_it_is_only_in_the_data_directory() -> None:
    embedded = secrets(None)
    secret = embedded.new()
    assert len(secret) == 32
    assert embedded.read("s", [embedded.stored("s", secret)]) == (secret,)
    with pytest.raises(RequestError, match=r"set broker\.secrets_key_file"):
        secrets(None, **ZOOKEEPER).stored("s", secret)


def test_encrypted_secret_is_read_by_its_key_for_its_subscription_alone(tmp_path: Path) -> None:
    one = secrets(key_file(tmp_path, "a"), **ZOOKEEPER)
    secret = one.new()
    stored = one.stored("s", secret)
    assert secret.hex() not in stored
    assert one.read("s", [stored]) == (secret,)
    others = [secrets(None), secrets(key_file(tmp_path, "b"))]
    for reader, name in [(one, "other"), *((other, "s") for other in others)]:
        with pytest.raises(SecretUnreadable) as refused:
            reader.read(name, [stored])
        assert refused.value.__cause__ is None


@pytest.mark.parametrize("stored", ["", "plain", "plain xyz", "encrypted", "encrypted a b", "secret"])
def test_damaged_secret_is_not_read(tmp_path: Path, stored: str) -> None:
    for keys in (None, key_file(tmp_path, "a")):
        with pytest.raises(SecretUnreadable):
            secrets(keys).read("s", [stored])


def test_secrets_are_encrypted_anew_by_a_new_key(tmp_path: Path) -> None:
    plain, old, both = secrets(None), secrets(key_file(tmp_path, "a")), secrets(key_file(tmp_path, "b", "a"))
    stored = plain.stored("s", b"1" * 32), old.stored("s", b"2" * 32)
    assert plain.renewed("s", stored) == stored
    renewed = both.renewed("s", stored)
    assert secrets(key_file(tmp_path, "b")).read("s", renewed) == (b"1" * 32, b"2" * 32)
    assert both.renewed("s", renewed) == renewed
