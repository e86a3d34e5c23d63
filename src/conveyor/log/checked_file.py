"""Small files that a start trusts: one line of text, and the CRC-32C of that text in hexadecimal.

    1042 5d3b1f0e

A start removes segments by what these files say. Without a checksum, one flipped bit of an offset would delete records
that no one asked to delete.
"""

from crc32c import crc32c

from conveyor.kernel.errors import LogDamaged
from conveyor.kernel.ports import Directory

_CHECKSUM_DIGITS = 8


def write_checked(disk: Directory, path: str, text: bytes) -> None:
    """Write the file atomically. text: without a line feed. Blocks. Raises StorageFailure."""
    disk.write_atomic(path, checked(text))


def checked(text: bytes) -> bytes:
    """Return the content of the file with this text."""
    return b"%b %08x\n" % (text, crc32c(text))


def read_checked(disk: Directory, path: str) -> bytes:
    """Return the text. Raises StorageFailure: LogDamaged if the checksum does not match. What to do then depends on the
    file, so the caller says it.
    """
    text, _, checksum = disk.read(path).removesuffix(b"\n").rpartition(b" ")
    if checksum != b"%08x" % crc32c(text):
        raise LogDamaged(f"{path} is damaged: its checksum does not match")
    return text
