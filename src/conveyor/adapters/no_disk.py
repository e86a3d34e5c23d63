"""The disk of a gateway, which has none: nothing is stored on it, and everything written to it fails."""

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory, File, Volume


class NoDisk:
    """See the module's docstring, and `conveyor.kernel.ports.Disk`."""

    def open(self, path: str, *, create: bool = False) -> File:
        raise _nothing_here(path)

    def exists(self, path: str) -> bool:
        return False

    def list(self, directory: str) -> list[str]:
        return []

    def read(self, path: str) -> bytes:
        raise _nothing_here(path)

    def write_atomic(self, path: str, content: bytes) -> None:
        raise _nothing_here(path)

    def remove(self, path: str) -> None:
        """Nothing exists."""

    def rename(self, old: str, new: str) -> None:
        raise _nothing_here(old)

    def sync_directory(self, path: str) -> None:
        raise _nothing_here(path)

    def allocate(self, path: str, size: int) -> None:
        raise _nothing_here(path)

    def hold(self, directory: str) -> Directory:
        raise _nothing_here(directory)

    def make_directory(self, path: str) -> None:
        raise _nothing_here(path)

    def remove_tree(self, path: str) -> None:
        """Nothing exists."""

    def volume(self, path: str) -> Volume:
        """Return an unknown volume, which no request has to spare."""
        return Volume(path="", total_bytes=-1, usable_bytes=-1)


def _nothing_here(path: str) -> StorageFailure:
    return StorageFailure(f"{path}: a gateway stores nothing")
