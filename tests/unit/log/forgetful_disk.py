"""A memory disk that forgets more in a power cut: removals and cuts of files, until a sync makes them durable."""

from random import Random

from conveyor.testing import MemoryDisk
from conveyor.testing.memory_disk import MemoryFile


class ForgetfulDisk(MemoryDisk):
    """See the module. It also counts removals as operations, so that `call_after` can stop it before each.

    is_forgetful: the removals and cuts from now on may be forgotten.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_forgetful = False
        self._removed: dict[str, MemoryFile] = {}
        self._uncut: dict[str, bytes] = {}

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        if operation == "truncate" and self.is_forgetful:
            file = self._files[path]
            self._uncut.setdefault(path, bytes(file.written[: file.synced_bytes]))
        if operation == "sync":
            self._uncut.pop(path, None)
        if operation == "sync_directory":
            self._removed = {name: file for name, file in self._removed.items() if not name.startswith(f"{path}/")}

    def remove(self, path: str) -> None:
        self.check("remove", path)
        if self.is_forgetful and path in self._durable_names:
            self._removed[path] = self._files[path]
        self._uncut.pop(path, None)
        super().remove(path)

    def write_atomic(self, path: str, content: bytes) -> None:
        super().write_atomic(path, content)
        self._removed.pop(path, None)

    def power_cut(self, chance: Random) -> "ForgetfulDisk":
        """Also bring back some removed files, and some ends of files that were cut off."""
        kept = super().power_cut(chance)
        survivor = ForgetfulDisk()
        for path, file in kept._files.items():
            survivor.adopt(path, bytes(file.written))
        for path, content in self._uncut.items():
            if path in survivor._files and chance.random() < 0.5:
                survivor.adopt(path, content)
        for path, file in self._removed.items():
            if path not in self._files and chance.random() < 0.5:
                survivor.adopt(path, bytes(file.written[: file.synced_bytes]))
        return survivor

    def adopt(self, path: str, content: bytes) -> None:
        """Have a durable file with this content."""
        file = MemoryFile(path, self)
        file.written += content
        file.synced_bytes = len(content)
        self._files[path] = file
        self._durable_names.add(path)
