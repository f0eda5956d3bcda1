"""Files that a run writes: whole or not at all, and where they were asked for."""

import os
import stat
import threading
from pathlib import Path

import pytest

from refimpl.cache import cache_folder, writable_folder
from refimpl.keep.files import writable_file, write, write_folder
from refimpl.validation import UserError


def put(text: str, path: Path) -> None:
    write(path, lambda file: file.write(text))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_as_open_would_make_it_and_an_old_one_keeps_its_mode(tmp_path):
    before = os.umask(0o027)
    try:
        put("a\n語", tmp_path / "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == "a\n語".encode()
    assert mode(tmp_path / "new") == 0o640
    for bits in (0o600, 0o755):
        (tmp_path / "new").chmod(bits)
        put("b", tmp_path / "new")
        assert (tmp_path / "new").read_text() == "b" and mode(tmp_path / "new") == bits
    write(tmp_path / "new", lambda file: file.write(b"\0c"), "wb")
    assert (tmp_path / "new").read_bytes() == b"\0c"
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_followed_also_to_another_folder(exists, tmp_path):
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to("there/target")
    if exists:
        target.write_text("old")
        target.chmod(0o600)
    put("new", link)
    assert link.is_symlink() and target.read_text() == "new"
    assert not target.is_symlink() and (not exists or mode(target) == 0o600)
    assert sorted(os.listdir(tmp_path)) == ["link", "there"]
    assert os.listdir(target.parent) == ["target"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe, link, read = tmp_path / "pipe", tmp_path / "link", []
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
        reader.start()
        put(f"to {path.name}", writable_file(path, "this"))
        reader.join(timeout=20)
        assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink()
    assert read == ["to pipe", "to link"]


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="there is no /dev/fd here")
def test_a_pipe_without_a_name_is_written_to():
    """As /dev/stdout is, behind two links, if the output goes into another program."""
    read, write_end = os.pipe()
    put("said", writable_file(f"/dev/fd/{write_end}", "this"))
    os.close(write_end)
    with open(read) as file:
        assert file.read() == "said"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_what_fails_leaves_nothing_behind_and_the_old_file_untouched(error, tmp_path):
    old = tmp_path / "old"
    old.write_text("as it was")
    inode = old.stat().st_ino

    def fill(file):
        file.write("half of")
        file.flush()
        raise error("in the midst")

    for path in (old, tmp_path / "new"):
        with pytest.raises(error, match="in the midst"):
            write(path, fill)
    assert os.listdir(tmp_path) == ["old"]
    assert old.read_text() == "as it was" and old.stat().st_ino == inode


@pytest.fixture
def order(monkeypatch):
    """What the system was asked for: a file brought to the disk, or renamed."""
    asked, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda h: (asked.append("sync"), sync(h))[1])
    renamed = lambda *two: (asked.append("rename"), rename(*two))[1]  # noqa: E731
    monkeypatch.setattr(os, "replace", renamed)
    return asked


def test_a_file_is_brought_to_the_disk_then_renamed_then_its_name_is(order, tmp_path):
    """In another order, a loss of power leaves the right name and no content."""
    write(tmp_path / "one", "text")
    assert order == ["sync", "rename", "sync"]
    order.clear()

    def two(folder):
        for name in "ab":
            (folder / name).write_text(name)

    write_folder(tmp_path, two)
    assert order == ["sync"] * 2 + ["rename"] * 2 + ["sync"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "one"]


def test_who_reads_while_a_file_is_written_has_the_old_one_whole(tmp_path):
    """The new one is another file, which takes the name over."""
    (path := tmp_path / "file").write_text("old")
    ways = (
        lambda text: write(path, text),
        lambda text: write_folder(tmp_path, lambda f: (f / "file").write_text(text)),
    )
    for number, replaced in enumerate(ways):
        before = path.read_text()
        with open(path) as reader:
            replaced(f"new {number}")
            assert reader.read() == before and path.read_text() == f"new {number}"


def test_asking_whether_something_can_be_written_leaves_nothing_but_folders(tmp_path):
    writable_folder(tmp_path / "new", "checkpoints")
    writable_file(tmp_path / "new" / "er" / "file", "the history")
    assert os.listdir(tmp_path / "new") == ["er"]
    assert os.listdir(tmp_path / "new" / "er") == []
    with pytest.raises(UserError, match="which is no name"):
        writable_folder("", "it")


def test_where_the_cache_is(monkeypatch, tmp_path):
    for name in ("REFIMPL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "refimpl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "refimpl"
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_what_a_killed_process_left_goes_at_the_next_write_after_a_day(tmp_path):
    """Younger ones may be somebody's who writes now; another name is not ours."""
    names = [".file.abc.unfinished", ".file.young.unfinished", ".file.old", "file.old"]
    for name in (*names, ".new.abc.unfinished/weights"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        if "young" not in name:
            os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / ".new.abc.unfinished", (0, 0))
    put("text", tmp_path / "file")
    left = {*names[1:], "file", ".new.abc.unfinished"}
    assert {*os.listdir(tmp_path)} == left
    write_folder(tmp_path, lambda folder: put("text", folder / "policy"))
    assert sorted(os.listdir(tmp_path)) == sorted([*names[1:], "file", "policy"])
