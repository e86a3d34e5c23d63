"""What a topic's batches are compressed with, read from the files that the broker keeps."""

from itertools import groupby
from pathlib import Path

from conveyor.records.batch import COMPRESSION_MASK, HEADER, read_header
from tests.clients.records import CODECS, PARTITIONS

_LENGTH_END = 12
"""A batch's length counts what comes after it."""
_WORTH_COMPRESSING = 1000
"""Clients leave a batch as it is if it would not get smaller, such as the one record with which franz-go may begin."""


def stored_codecs(data_dir: Path, topic: str, partition: int) -> list[str]:
    """The codecs of a partition's batches in their order, each once for batches in a row.

    Small batches that are not compressed are passed over.
    """
    codecs = []
    for segment in sorted((data_dir / "logs" / f"{topic}-{partition}").glob("*.log")):
        content = segment.read_bytes()
        position = 0
        while position < len(content):
            header = read_header(content[position : position + HEADER.size])
            codec = CODECS[header.attributes & COMPRESSION_MASK]
            if codec != "none" or header.batch_length >= _WORTH_COMPRESSING:
                codecs.append(codec)
            position += _LENGTH_END + header.batch_length
    return [codec for codec, _ in groupby(codecs)]


def check_stored_codecs(data_dir: Path, topic: str, codecs: tuple[str, ...], partitions: int = PARTITIONS) -> None:
    """Every partition has batches of each codec, and of no other, in the order in which they were asked for."""
    found = {number: stored_codecs(data_dir, topic, number) for number in range(partitions)}
    assert found == {number: list(codecs) for number in range(partitions)}
