"""Files that a run writes: whole or not at all, and over nobody's work."""

import os

import pytest

from refimpl.files import write
from refimpl.validation import UserError


def test_a_text_and_what_a_function_writes_in_folders_that_are_made(tmp_path):
    path = tmp_path / "new" / "er" / "file"
    write(path, "a\n語")
    assert path.read_bytes() == "a\n語".encode()
    write(path, lambda file: file.write(b"\0c"), "wb")
    assert path.read_bytes() == b"\0c" and os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_what_fails_leaves_nothing_behind_and_the_old_file_untouched(error, tmp_path):
    old = tmp_path / "old"
    old.write_text("as it was")

    def fill(file):
        file.write("half of")
        file.flush()
        raise error("in the midst")

    for path in (old, tmp_path / "new"):
        with pytest.raises((error, UserError), match="in the midst"):
            write(path, fill)
    assert os.listdir(tmp_path) == ["old"] and old.read_text() == "as it was"


def test_a_file_is_brought_to_the_disk_then_renamed(tmp_path, monkeypatch):
    """In another order, a loss of power leaves the right name and no content."""
    asked, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda h: (asked.append("sync"), sync(h))[1])
    renamed = lambda *two: (asked.append("rename"), rename(*two))[1]  # noqa: E731
    monkeypatch.setattr(os, "replace", renamed)
    write(tmp_path / "one", "text")
    assert asked == ["sync", "rename"]


def test_who_reads_while_a_file_is_written_has_the_old_one_whole(tmp_path):
    """The new one is another file, which takes the name over, also behind a link."""
    (path := tmp_path / "file").write_text("old")
    (link := tmp_path / "link").symlink_to("file")
    with open(path) as reader:
        write(link, "new")
        assert reader.read() == "old" and path.read_text() == "new"
    assert link.is_symlink()


@pytest.mark.parametrize(
    "name", ["folder", "link", "file/below", "nul\0", "\ud800", "n" * 400]
)
def test_where_nothing_can_be_written_is_one_sentence(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/dev/null")  # which root could replace
    with pytest.raises(UserError, match="cannot write a file to"):
        write(f"{tmp_path}/{name}", "text")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link"]
    assert not os.path.isfile("/dev/null")
