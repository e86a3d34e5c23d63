"""The identity of the page cache changes with the boot, the mount and the device, and with nothing else."""

import os
from pathlib import Path

import pytest

from conveyor.adapters.page_cache import page_cache_id


def number(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def attach(sysfs: Path, path: Path, device: str) -> Path:
    """Show the device of a path, as the kernel does. Returns its directory."""
    node = sysfs / "devices" / device
    node.mkdir(parents=True)
    (sysfs / "dev/block").mkdir(parents=True, exist_ok=True)
    (sysfs / "dev/block" / number(path)).symlink_to(node)
    return node


def mount(sysfs: Path, kind: str, device: str) -> Path:
    node = sysfs / "fs" / kind / device
    node.mkdir(parents=True)
    return node


def remade(node: Path) -> None:
    """Remove a directory and make it again, with another inode number."""
    node.rename(node.with_name("former"))
    node.mkdir()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def test_boot_and_device_number_stand_alone_without_nodes(directory: Path, tmp_path: Path) -> None:
    found = page_cache_id("boot", directory, tmp_path / "nothing")
    assert found == f"boot {number(directory)}"
    assert page_cache_id("another", directory, tmp_path / "nothing") != found


def test_mount_and_device_count(directory: Path, tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    node = attach(sysfs, directory, "sda1")
    mount(sysfs, "ext4", "sdb1")
    unmounted = page_cache_id("boot", directory, sysfs)
    mounted_node = mount(sysfs, "xfs", "sda1")
    mounted = page_cache_id("boot", directory, sysfs)
    assert page_cache_id("boot", directory, sysfs) == mounted != unmounted
    remade(mounted_node)
    mounted_again = page_cache_id("boot", directory, sysfs)
    remade(node)
    attached_again = page_cache_id("boot", directory, sysfs)
    assert len({unmounted, mounted, mounted_again, attached_again}) == 4


def test_logs_may_be_another_mount(directory: Path, tmp_path: Path) -> None:
    sysfs, logs = tmp_path / "sys", directory / "logs"
    alone = page_cache_id("boot", directory, sysfs)
    logs.mkdir()
    assert page_cache_id("boot", directory, sysfs) == alone, "as long as it is not"
    logs.rmdir()
    logs.symlink_to("/dev")  # It is always a file system of its own.
    found = page_cache_id("boot", directory, sysfs)
    assert sorted(found.split()) == sorted(["boot", number(directory), number(logs)])
    attach(sysfs, logs, "sdb1")
    node = mount(sysfs, "ext4", "sdb1")
    mounted = page_cache_id("boot", directory, sysfs)
    remade(node)
    assert len({found, mounted, page_cache_id("boot", directory, sysfs)}) == 3


def test_this_machine_has_an_identity_that_stays(directory: Path) -> None:
    assert page_cache_id("boot", directory) == page_cache_id("boot", directory) != "boot"
