"""Paths of the metadata tree, as every store reads them."""

from conveyor.kernel.errors import StorageFailure


def parents(path: str) -> list[str]:
    """Return the paths above a path, the highest first: `/a` and `/a/b` for `/a/b/c`. The root is not among them."""
    return [path[:end] for end in range(1, len(path)) if path[end] == "/"]


def below_an_ephemeral(path: str, ephemeral: str) -> StorageFailure:
    """Return the failure of a commit that would write a node below an ephemeral one."""
    return StorageFailure(f"metadata store: {path} cannot be written, because {ephemeral} is ephemeral")
