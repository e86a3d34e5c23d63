"""A memory disk that forgets more in a power cut: removals and cuts of files, until a sync makes them durable."""

from random import Random

from conveyor.testing import MemoryDisk
from conveyor.testing.memory_disk import MemoryFile


class ForgetfulDisk(MemoryDisk):
    """See the module. It also counts removals as operations, so that `call_after` can stop it before each."""

    def __init__(self) -> None:
        super().__init__()
        self._removed: dict[str, MemoryFile] = {}
        self._uncut: dict[str, bytes] = {}

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        if operation == "truncate":
            file = self._files[path]
            self._uncut.setdefault(path, bytes(file.written[: file.synced_bytes]))
        if operation == "sync":
            self._uncut.pop(path, None)
        if operation == "sync_directory":
            self._forget_removals(path)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        if path in self._durable_names:
            self._removed[path] = self._files[path]
        self._uncut.pop(path, None)
        super().remove(path)

    def write_atomic(self, path: str, content: bytes) -> None:
        super().write_atomic(path, content)
        self._forget_removals(path.rpartition("/")[0])

    def process_crash(self) -> "ForgetfulDisk":
        """The next process does not make removals and cuts durable either."""
        survivor = _forgetful(super().process_crash())
        survivor._removed = dict(self._removed)
        survivor._uncut = dict(self._uncut)
        return survivor

    def power_cut(self, chance: Random) -> "ForgetfulDisk":
        """Also bring back some removed files, and some ends of files that were cut off."""
        survivor = _forgetful(super().power_cut(chance))
        for path, content in self._uncut.items():
            if path in survivor._files and chance.random() < 0.5:
                survivor.adopt(path, content, len(content))
        for path, file in self._removed.items():
            if path not in self._files and chance.random() < 0.5:
                survivor.adopt(path, bytes(file.written[: file.synced_bytes]), file.synced_bytes)
                survivor._durable_names.add(path)
        return survivor

    def adopt(self, path: str, content: bytes, synced_bytes: int) -> None:
        """Have a file with this content. Its name is as durable as before."""
        file = MemoryFile(path, self)
        file.written += content
        file.synced_bytes = synced_bytes
        self._files[path] = file

    def _forget_removals(self, directory: str) -> None:
        """The removals of files in this directory are durable."""
        self._removed = {name: file for name, file in self._removed.items() if not name.startswith(f"{directory}/")}


def _forgetful(disk: MemoryDisk) -> ForgetfulDisk:
    """Return a disk with the same files, directories and space."""
    made = ForgetfulDisk()
    made.faults = disk.faults.copy()
    made._durable_names, made._directories = set(disk._durable_names), dict(disk._directories)
    made._files = {path: file.copied(made) for path, file in disk._files.items()}
    return made
