"""The address of a ZooKeeper: `zookeeper://[user:password@]host:port,host:port/path`."""

import re
from urllib.parse import unquote

import msgspec

from conveyor.kernel.errors import SettingsError

SCHEME = "zookeeper://"
_DEFAULT_PORT = 2181
_HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
_FORM = f"the form is {SCHEME}host:2181,host:2181/path"


class ZookeeperAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the metadata in ZooKeeper. `str` leaves out the credentials.

    servers: `host:port,host:port`. root: the path above all nodes; empty for the root of the ZooKeeper.
    credentials: `user:password` for digest authentication.
    """

    servers: str
    root: str
    credentials: str | None

    def __str__(self) -> str:
        return f"{SCHEME}{self.servers}{self.root}"


def parse_zookeeper_address(text: str) -> ZookeeperAddress:
    """Return the parsed address. User and password are percent-encoded. Raises SettingsError, without the password."""
    if not text.startswith(SCHEME):
        raise SettingsError(f"setting 'broker.metadata' is neither embedded nor an address of a ZooKeeper: {_FORM}")
    authority, _, path = text.removeprefix(SCHEME).partition("/")
    userinfo, at_sign, servers = authority.rpartition("@")
    return ZookeeperAddress(
        servers=",".join(_server(server) for server in servers.split(",")),
        root=_root(path),
        credentials=_credentials(userinfo) if at_sign else None,
    )


def _server(text: str) -> str:
    found = _HOST.fullmatch(text.strip())
    port = int((found and found["port"]) or _DEFAULT_PORT)
    if found is None or not 0 < port < 1 << 16:
        raise SettingsError(f"setting 'broker.metadata' names the server {text!r}: {_FORM}")
    return f"{found['host']}:{port}"


def _root(path: str) -> str:
    names = [name for name in path.split("/") if name]
    if {".", ".."} & set(names) or not path.isprintable():
        raise SettingsError(f"setting 'broker.metadata' has the path /{path!r}: {_FORM}")
    return "".join(f"/{name}" for name in names)


def _credentials(userinfo: str) -> str:
    user, colon, password = userinfo.partition(":")
    if not user or not colon:
        raise SettingsError(f"setting 'broker.metadata' has credentials in another form than user:password; {_FORM}")
    return f"{unquote(user)}:{unquote(password)}"
