"""The keys by which secrets in the metadata are encrypted. Loaded only with such a file: its library takes 6 MiB.

    encrypted KEY NONCE-AND-CIPHERTEXT    a secret: AES-256-GCM, with the path of its node as associated data

KEY is the start of the key's SHA-256; both are hexadecimal digits.
"""

import hashlib
import os
import re
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.adapters.tls.certificate_files import usable, warn_of_readable_key
from conveyor.broker.metadata.cluster_secret import ENCRYPTED
from conveyor.kernel.errors import SettingsError, StartupError, StorageFailure

SETTING = "broker.secrets_key_file"
_KEY_BYTES, _NONCE_BYTES, _NAME_BYTES = 32, 12, 4


class KeyFile:
    """A key a line, in 64 hexadecimal digits; the first one encrypts, all of them decrypt. A `SecretKeys`.

    Raises SettingsError for a file that cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with usable(f"{SETTING}: {path}"):
            lines = path.read_text().splitlines()
            warn_of_readable_key(str(path), SETTING)
        keys = [self._key(number, line) for number, line in enumerate(lines or [""], start=1)]
        self._ciphers = {hashlib.sha256(key).digest()[:_NAME_BYTES].hex(): AESGCM(key) for key in keys}
        self._name = next(iter(self._ciphers))

    def encrypt(self, path: str, secret: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._ciphers[self._name].encrypt(nonce, secret, path.encode())
        return self._beginning() + sealed.hex().encode()

    def decrypt(self, path: str, content: bytes) -> bytes:
        try:
            name, digits = content.removeprefix(ENCRYPTED).decode().split(" ")
            sealed = bytes.fromhex(digits)
            if name not in self._ciphers:
                raise StartupError(
                    f"the secret at {path} of the metadata is encrypted with key {name}, which is not in {self._path}:"
                    f" add that key to the file ({SETTING})"
                )
            return self._ciphers[name].decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], path.encode())
        except (ValueError, InvalidTag) as error:
            raise StorageFailure(f"metadata store: node {path} is damaged") from error

    def is_current(self, content: bytes) -> bool:
        return content.startswith(self._beginning())

    def _beginning(self) -> bytes:
        return ENCRYPTED + self._name.encode() + b" "

    def _key(self, number: int, line: str) -> bytes:
        if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * _KEY_BYTES}}}", line):
            raise SettingsError(
                f"{SETTING}: line {number} of {self._path} is no key: make one with `openssl rand -hex {_KEY_BYTES}`"
            )
        return bytes.fromhex(line)
