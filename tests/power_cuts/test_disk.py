"""Tests of the lossy disk: what an fsync promises, and that nothing else is promised."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable

import pytest

from tests.power_cuts.disk import SECTOR, LossyDisk, Names

FILE = stat.S_IFREG | 0o600
FOLDER = stat.S_IFDIR | 0o700


def after_cuts(use: Callable[[LossyDisk], None], cuts: int = 60) -> list[Names]:
    """Returns what survives the same use with a different seed for each cut."""
    left = []
    for seed in range(cuts):
        disk = LossyDisk(seed)
        use(disk)
        disk.cut()
        left.append(disk.image())
    return left


def test_what_was_synced_with_its_name_is_there_after_every_cut() -> None:
    def use(disk: LossyDisk) -> None:
        disk.create("/folder", FOLDER)
        node = disk.create("/folder/file", FILE)
        disk.write(node, 0, b"a" * 2000)
        disk.sync(node)
        disk.sync_folder("/folder")

    assert {bytes(names["/folder/file"].live) for names in after_cuts(use)} == {b"a" * 2000}


def test_of_what_was_not_synced_each_sector_is_there_or_not() -> None:
    def use(disk: LossyDisk) -> None:
        node = disk.create("/file", FILE)
        disk.write(node, 0, b"o" * 4 * SECTOR)
        disk.sync(node)
        disk.sync_folder("/")
        disk.write(node, 0, b"n" * 4 * SECTOR)

    contents = {bytes(names["/file"].live) for names in after_cuts(use, 300)}
    assert len(contents) == 2**4
    for content in contents:
        assert all(
            content[n : n + SECTOR] in (b"o" * SECTOR, b"n" * SECTOR)
            for n in range(0, 4 * SECTOR, SECTOR)
        )


def test_a_file_is_synced_and_its_name_is_not() -> None:
    def use(disk: LossyDisk) -> None:
        node = disk.create("/file", FILE)
        disk.write(node, 0, b"content")
        disk.sync(node)

    left = after_cuts(use)
    assert {names["/file"].live.decode() for names in left if "/file" in names} == {"content"}
    assert any("/file" not in names for names in left)


def test_a_name_is_synced_and_the_content_is_not() -> None:
    def use(disk: LossyDisk) -> None:
        disk.write(disk.create("/file.new", FILE), 0, b"content")
        disk.rename("/file.new", "/file")
        disk.sync_folder("/")

    left = after_cuts(use)
    assert {tuple(sorted(names)) for names in left} == {("/", "/file")}
    assert {names["/file"].live.decode() for names in left} == {"", "content"}


def test_names_are_lost_from_the_last_one_backwards() -> None:
    def use(disk: LossyDisk) -> None:
        for number in range(5):
            disk.create(f"/{number}", FILE)
        disk.rename("/0", "/5")

    left = {tuple(sorted(names)) for names in after_cuts(use, 200)}
    made = ["/", "/0", "/1", "/2", "/3", "/4"]
    assert left == {tuple(made[:n]) for n in range(1, 7)} | {("/", "/1", "/2", "/3", "/4", "/5")}


def test_a_replaced_file_is_the_old_or_the_new_one() -> None:
    def use(disk: LossyDisk) -> None:
        for content in (b"old", b"new"):
            node = disk.create("/file.new", FILE)
            disk.write(node, 0, content)
            disk.sync(node)
            disk.rename("/file.new", "/file")
            if content == b"old":
                disk.sync_folder("/")

    assert {bytes(names["/file"].live) for names in after_cuts(use)} == {b"old", b"new"}


def test_a_removed_file_is_its_holders_still() -> None:
    disk = LossyDisk(0)
    node = disk.create("/file", FILE)
    disk.remove("/file")
    disk.write(node, 0, b"content")
    assert disk.read(node, 0, 100) == b"content"
    with pytest.raises(FileNotFoundError):
        disk.node("/file")


def test_after_the_cut_everything_fails_and_nothing_counts() -> None:
    disk = LossyDisk(0)
    node = disk.create("/file", FILE)
    disk.write(node, 0, b"before")
    disk.sync(node)
    disk.sync_folder("/")
    disk.cut()
    for late in (
        lambda: disk.write(node, 0, b"after!"),
        lambda: disk.sync(node),
        lambda: disk.create("/late", FILE),
        lambda: disk.entries("/"),
    ):
        with pytest.raises(OSError, match="Input/output") as caught:
            late()
        assert caught.value.errno == errno.EIO
    assert disk.image()["/file"].live == b"before"
    assert set(disk.image()) == {"/", "/file"}


def test_the_next_disk_goes_on_with_what_is_left() -> None:
    first = LossyDisk(0)
    node = first.create("/file", FILE)
    first.write(node, 0, b"kept")
    first.sync(node)
    first.sync_folder("/")
    first.cut()
    second = LossyDisk(1, first.image())
    again = second.node("/file")
    second.truncate(again, 2)
    second.cut()
    assert bytes(second.image()["/file"].live) in (b"kept", b"ke")
