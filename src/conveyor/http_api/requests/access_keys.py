"""The access keys of users, by which SDKs sign requests to SQS. A file has one key a line: id, secret, user.

    # access key id       secret access key                          user
    AKIAORDERS00000001    3vJ5mQ2xkq7pZr9TfL1cYb8wHn4sDg6uXa0eRtPi   orders-service

To verify a signature the broker needs the secret itself, not a hash of it, so keep the file as a private key is kept.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from conveyor.kernel.errors import SettingsError

_ID = re.compile(r"[A-Za-z0-9_]{8,128}")
_MIN_SECRET = 20
"""Characters. The signature is on the wire, so a short secret could be found by trying."""


@dataclass(frozen=True, slots=True)
class AccessKey:
    """secret: the secret access key. user: who signs by it, as ACLs name users, without `User:`."""

    secret: str
    user: str


NO_KEYS: Mapping[str, AccessKey] = MappingProxyType({})


def read_access_keys(path: str) -> Mapping[str, AccessKey]:
    """Read keys from a file, by access key id. Empty lines and lines that begin with # are ignored.

    path: empty for no keys. Raises SettingsError, which shows no secret.
    """
    if not path:
        return NO_KEYS
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"sqs.keys_file {path} cannot be read: {reason}") from error
    keys: dict[str, AccessKey] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        problem = _problem(fields, keys)
        if problem is not None:
            raise SettingsError(f"sqs.keys_file {path}, line {number}: {problem}")
        keys[fields[0]] = AccessKey(fields[1], fields[2])
    return keys


def _problem(fields: list[str], keys: Mapping[str, AccessKey]) -> str | None:
    """Return what is wrong with a line; None if it is right."""
    if len(fields) != 3:
        return "write an access key id, its secret access key and its user, with spaces between them"
    if _ID.fullmatch(fields[0]) is None:
        return "an access key id has 8 to 128 letters, digits and underscores"
    if fields[0] in keys:
        return f"the access key id {fields[0]} occurs twice"
    if len(fields[1]) < _MIN_SECRET or not fields[1].isascii():
        return f"a secret access key has at least {_MIN_SECRET} characters, in ASCII"
    return None
