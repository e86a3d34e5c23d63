"""Sends Conveyor, and the packages that readers and writers import, from the driver to a cluster's executors.

They travel as a zip archive that every executor unpacks into its working directory, before its first task and on its
PYTHONPATH. `--py-files` is not enough: a stream's source is imported in processes that do not see such files, and
compiled packages cannot be imported from a zip file. The archive does not have Python and what Spark itself needs
(pyarrow, pandas, NumPy); every node has to have them.
"""

import os
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import conveyor
import pyspark_conveyor

FOLDER = "conveyor_packages"
"""The path of the packages, from the working directory of an executor."""

_DISTRIBUTIONS = ("confluent-kafka", "cramjam", "crc32c", "kafka-python", "msgspec")
_OF_SCHEMAS = ("fastavro", "protobuf")
"""Of the extra `schemas`: sent if they are installed here."""


def pack(target: Path) -> None:
    """Write the archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for file, name in (*_own_files(), *_other_files()):
            archive.write(file, name)


def _own_files() -> Iterator[tuple[Path, str]]:
    for package in (conveyor, pyspark_conveyor):
        root = Path(next(iter(package.__path__)))
        for folder, _, names in os.walk(root):
            for name in names:
                file = Path(folder) / name
                if _is_wanted(file):
                    yield file, str(Path(package.__name__) / file.relative_to(root))


def _other_files() -> Iterator[tuple[Path, str]]:
    for name in (*_DISTRIBUTIONS, *filter(_is_installed, _OF_SCHEMAS)):
        for file in distribution(name).files or ():
            if ".." not in file.parts and _is_wanted(Path(file)):
                yield Path(str(file.locate())), str(file)


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _is_wanted(file: Path) -> bool:
    return "__pycache__" not in file.parts
