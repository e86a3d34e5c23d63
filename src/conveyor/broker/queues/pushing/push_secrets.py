"""Keeps the secrets that sign push requests in the metadata, from where each broker must be able to read them again.

    encrypted <key> <hex>    by a key of `broker.secrets_key_file`
    plain <hex>              without a key file, in a store that is in the data directory

A store that others than brokers can read gets no secret that is not encrypted.
"""

from collections.abc import Sequence

from conveyor.broker.metadata.cluster_secret import ENCRYPTED, SecretKeys
from conveyor.broker.services import Services
from conveyor.kernel.errors import ErrorKind, RequestError, StartupError, StorageFailure
from conveyor.kernel.ids import NewId, random_secret

_PLAIN = "plain "
_SHARED_STORE = "zookeeper:"


class SecretUnreadable(Exception):  # noqa: N818 - named for what it is
    """A secret in the metadata cannot be read on this broker. The text has no part of it."""


class PushSecrets:
    """See the module's docstring. keys: those of the key file; None without one."""

    def __init__(self, services: Services, keys: SecretKeys | None) -> None:
        self._new_id: NewId = services.new_id
        self._keys = keys
        self._is_shared = services.settings.broker.metadata.startswith(_SHARED_STORE)

    def new(self) -> bytes:
        """Return a new secret, of 32 bytes."""
        return random_secret(self._new_id)

    def stored(self, subscription: str, secret: bytes) -> str:
        """Return the text that the metadata keeps. Raises RequestError (POLICY_VIOLATION) if it would not be safe."""
        if self._keys is not None:
            return self._keys.encrypt(_path(subscription), secret).decode()
        if self._is_shared:
            raise RequestError(
                ErrorKind.POLICY_VIOLATION,
                "the secret of a push is stored in ZooKeeper only if it is encrypted: set broker.secrets_key_file for"
                " all brokers",
            )
        return _PLAIN + secret.hex()

    def read(self, subscription: str, stored: Sequence[str]) -> tuple[bytes, ...]:
        """Return the secrets of texts that the metadata keeps. Raises SecretUnreadable."""
        return tuple(self._read(_path(subscription), text) for text in stored)

    def renewed(self, subscription: str, stored: Sequence[str]) -> tuple[str, ...]:
        """Return the same secrets as the metadata should keep them: by the key that encrypts today. Raises
        SecretUnreadable.
        """
        keys = self._keys
        if keys is None or all(keys.is_current(text.encode()) for text in stored):
            return tuple(stored)
        path = _path(subscription)
        return tuple(keys.encrypt(path, self._read(path, text)).decode() for text in stored)

    def _read(self, path: str, text: str) -> bytes:
        try:
            if text.startswith(_PLAIN):
                return bytes.fromhex(text.removeprefix(_PLAIN))
            if self._keys is not None and text.encode().startswith(ENCRYPTED):
                return self._keys.decrypt(path, text.encode())
        except (StartupError, StorageFailure, ValueError):
            raise SecretUnreadable("this broker cannot decrypt the secret: see broker.secrets_key_file") from None
        raise SecretUnreadable("the secret is encrypted, and this broker has no broker.secrets_key_file")


def _path(subscription: str) -> str:
    """Return what a secret belongs to: one that is copied to another subscription cannot be decrypted there."""
    return f"/subscriptions/{subscription}/push"
