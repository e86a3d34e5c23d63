"""A file with the keys of secrets in the metadata."""

from pathlib import Path
from uuid import uuid4

import pytest

from conveyor.adapters.key_file import KeyFile
from conveyor.broker.metadata.cluster_secret import CLUSTER_SECRET_PATH, ENCRYPTED, cluster_secret
from conveyor.kernel.errors import SettingsError, StartupError, StorageFailure
from conveyor.kernel.ports import PutNode
from conveyor.testing.memory_store import MemoryTree

ONE, TWO = "01" * 32, "a2" * 32
SECRET = b"s" * 32


def key_file(directory: Path, *keys: str) -> KeyFile:
    path = directory / "keys"
    path.write_text("\n".join(keys))
    path.chmod(0o600)
    return KeyFile(path)


def test_what_is_encrypted_shows_nothing_and_is_decrypted(tmp_path: Path) -> None:
    keys = key_file(tmp_path, ONE)
    content = keys.encrypt("/a", SECRET)
    assert content.startswith(ENCRYPTED)
    assert SECRET.hex().encode() not in content
    assert keys.decrypt("/a", content) == SECRET
    assert content != keys.encrypt("/a", SECRET), "each time with a nonce of its own"


def test_the_first_key_encrypts_and_all_decrypt(tmp_path: Path) -> None:
    before = key_file(tmp_path, ONE).encrypt("/a", SECRET)
    keys = key_file(tmp_path, TWO, ONE)
    assert keys.decrypt("/a", before) == SECRET
    assert not keys.is_current(before)
    after = keys.encrypt("/a", SECRET)
    assert keys.is_current(after)
    with pytest.raises(StartupError, match=r"is encrypted with key [0-9a-f]{8}, which is not in .*/keys: add that key"):
        key_file(tmp_path, ONE).decrypt("/a", after)


@pytest.mark.parametrize("damage", ["bit", "end", "path", "no key", "no digits", "words"])
def test_damaged_secrets_are_not_used(tmp_path: Path, damage: str) -> None:
    keys = key_file(tmp_path, ONE)
    content = keys.encrypt("/a", SECRET)
    flipped = content[:-1] + (b"0" if content[-1:] != b"0" else b"1")
    contents = {
        "bit": flipped, "end": content[:-2], "path": keys.encrypt("/b", SECRET), "no key": ENCRYPTED,
        "no digits": content[:-2] + b"xy", "words": content + b" 00",
    }  # fmt: skip
    with pytest.raises(StorageFailure, match="node /a is damaged"):
        keys.decrypt("/a", contents[damage])


@pytest.mark.parametrize("lines", [[""], [ONE[:-1]], [f"{ONE}0"], [f"{ONE} "], ["x" * 64], [ONE, "01"]])
def test_file_without_keys_is_refused(tmp_path: Path, lines: list[str]) -> None:
    wrong = len(lines)
    with pytest.raises(
        SettingsError, match=rf"line {wrong} of .*/keys is no key: make one with `openssl rand -hex 32`"
    ):
        key_file(tmp_path, *lines)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"broker\.secrets_key_file: .*/none cannot be used: No such file"):
        KeyFile(tmp_path / "none")


def test_key_that_everybody_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "keys").write_text(ONE)
    (tmp_path / "keys").chmod(0o644)
    KeyFile(tmp_path / "keys")
    assert "every user of this machine can read the key file=" in caplog.text


async def test_secret_of_the_cluster_stays_when_its_encryption_begins_and_when_keys_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryTree().open_session(2_000)
    secret = await cluster_secret(store, uuid4)
    contents = []
    for keys in ([ONE], [ONE, TWO], [TWO, ONE], [TWO]):
        assert await cluster_secret(store, uuid4, key_file(tmp_path, *keys)) == secret
        node = await store.get(CLUSTER_SECRET_PATH)
        assert node is not None
        contents.append(node.value)
    assert contents[0] == contents[1], "a key that comes as the last one changes nothing"
    assert contents[1] != contents[2] == contents[3]
    assert caplog.text.count("was not encrypted before") == 1


async def test_secret_is_encrypted_from_its_creation_on(tmp_path: Path) -> None:
    store = MemoryTree().open_session(2_000)
    keys = key_file(tmp_path, ONE)
    secret = await cluster_secret(store, uuid4, keys)
    assert await cluster_secret(store, uuid4, keys) == secret
    with pytest.raises(StartupError, match="the secret of the cluster is encrypted: set "):
        await cluster_secret(store, uuid4)


async def test_encrypted_secret_is_never_replaced(tmp_path: Path) -> None:
    store = MemoryTree().open_session(2_000)
    damaged = key_file(tmp_path, ONE).encrypt("/elsewhere", SECRET)
    await store.commit(PutNode(CLUSTER_SECRET_PATH, damaged))
    with pytest.raises(StorageFailure):
        await cluster_secret(store, uuid4, key_file(tmp_path, ONE))
    node = await store.get(CLUSTER_SECRET_PATH)
    assert node is not None
    assert node.value == damaged
