"""The small files that a start trusts."""

import pytest

from conveyor.kernel.errors import LogDamaged
from conveyor.log.checked_file import read_checked, write_checked
from conveyor.testing.memory_disk import MemoryDisk


@pytest.mark.parametrize("text", [b"0", b"1042", b'{"end_offset":3,"creates":false}'])
def test_text_returns_as_it_was_written(text: bytes) -> None:
    disk = MemoryDisk()
    write_checked(disk, "f", text)
    assert read_checked(disk, "f") == text


@pytest.mark.parametrize("content", [b"", b"\n", b"1042\n", b" 00000001\n", b"1042 5d3b\n"])
def test_content_without_a_checksum_is_refused(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write_atomic("f", content)
    with pytest.raises(LogDamaged, match=r"^f is damaged: its checksum does not match$"):
        read_checked(disk, "f")
