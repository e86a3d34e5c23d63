"""Certificates, keys and authorities in files (PEM): loads them, and loads them again when they change.

Files that cannot be used, for example because only one of two has been replaced yet, change nothing, and are tried
again.
"""

import logging
import ssl
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from conveyor.adapters.tls.tls_channel import TlsChannel
from conveyor.kernel.errors import SettingsError

log = logging.getLogger(__name__)

CURVE = "prime256v1"
"""The one group for keys: others cost up to a tenth of a second for each hello of a stranger."""

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL."""

Loaded = TypeVar("Loaded")
_FileState = tuple[int, int, int, int]


class WatchedFiles(Generic[Loaded]):
    """See the module's docstring. loaded: what was made of the files in force.

    files: their paths; empty ones count for nothing. load: raises SettingsError for files that cannot be used.
    """

    def __init__(self, files: Sequence[str], load: Callable[[], Loaded]) -> None:
        self._files = [Path(file) for file in files if file]
        self._load = load
        self._states = self._file_states()
        """Of the files when those in force were loaded."""
        self.loaded = load()
        self._refusal = ""
        """The reason why the changed files were not loaded."""

    def reload(self) -> None:
        """Load the files again if they differ from those in force. It reads files, so it may take long."""
        states = self._file_states()
        if states == self._states:
            return
        try:
            self.loaded = self._load()
        except SettingsError as refused:
            if str(refused) != self._refusal:
                log.warning("changed certificate not loaded, the one from before stays: %s", refused)
            self._refusal = str(refused)
        else:
            self._states, self._refusal = states, ""
            log.info("changed certificate loaded file=%s", self._files[0])

    def _file_states(self) -> list[_FileState | None]:
        return [_state(file) for file in self._files]


def _state(file: Path) -> _FileState | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


@contextmanager
def usable(what: str) -> Iterator[None]:
    """Raises SettingsError, which says what cannot be used and why, for a file that cannot be loaded."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise SettingsError(f"{what} cannot be used: {_reason(error)}") from error


def load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    """Let a context show a certificate. Raises OSError, ValueError."""
    # Without a password OpenSSL would ask for one on the terminal.
    context.load_cert_chain(cert_file, key_file, password=_no_password)


def warn_of_readable_key(key_file: str, setting: str) -> None:
    """Log a warning if every user of this machine can read a key. Raises OSError."""
    if Path(key_file).stat().st_mode & stat.S_IROTH:
        log.warning("every user of this machine can read the key file=%s (%s)", key_file, setting)


def trusting_only(protocol: int, cert_file: str) -> ssl.SSLContext:
    """Return the context of one end that asks for a certificate and trusts those in a file, even if they have expired.

    Raises OSError, ValueError.
    """
    context = ssl.SSLContext(protocol)
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    context.verify_flags = ssl.VerifyFlags(context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    context.load_verify_locations(cert_file)
    return context


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str | None = None
) -> tuple[TlsChannel, TlsChannel]:
    """Return the client's and the server's end of a handshake in memory, once both have finished it. Raises TlsFailed.

    host: what the server's certificate has to be valid for.
    """
    dialer, acceptor = TlsChannel(client, is_server=False, host=host), TlsChannel(server, is_server=True)
    dialer.begin()
    while not (dialer.is_open and acceptor.is_open):
        acceptor.receive(dialer.take_encrypted())
        dialer.receive(acceptor.take_encrypted())
    return dialer, acceptor


def end_of_validity(verifier: TlsChannel) -> float:
    """Return when the certificate that one end has verified ends, in seconds since 1970. Raises ValueError."""
    return ssl.cert_time_to_seconds(str(verifier.peer_details["notAfter"]))


def _no_password() -> str:
    raise ValueError("the key is encrypted: decrypt it, for example by `openssl pkey`, and protect the file instead")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.lower().replace("_", " ") if error.reason else "it is no PEM file"
    return getattr(error, "strerror", None) or str(error)
