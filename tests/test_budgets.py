"""Every room keeps its budget of CONTRIBUTING's table, and no raise is silent."""

import subprocess

import pytest

from tests.tools.budgets import (
    PAGE,
    ROOT,
    budgets,
    code,
    files,
    measured,
    room_of,
    written,
)

LIMITS = budgets(PAGE.read_text("utf-8"))
FOUND = measured(LIMITS)
SLACK = 15, 0.03
"""Lines, or share of the budget, by which a room may lie below it."""
COMMITS = [("HEAD~1", "HEAD"), ("HEAD", None)]
"""The last commit, and what is not committed yet."""


@pytest.mark.parametrize("room", LIMITS)
def test_a_room_keeps_its_budget(room):
    found, limit = FOUND[room], LIMITS[room]
    advice = f"the table of CONTRIBUTING says {limit:,}: take code away, or write"
    advice += f" {found:,} and a line in CHANGELOG.md that says why"
    assert found <= limit, advice


@pytest.mark.parametrize("room", LIMITS)
def test_a_room_that_shrank_lowers_its_budget(room):
    found, limit = FOUND[room], LIMITS[room]
    least = limit - max(SLACK[0], SLACK[1] * limit)
    advice = f"write {found:,} in the table of CONTRIBUTING: it is smaller"
    assert found >= least, advice


def test_no_file_is_outside_and_no_room_is_named_twice():
    page = PAGE.read_text("utf-8")
    assert [path for path in files() if room_of(path, LIMITS) is None] == []
    assert [room for room in LIMITS if page.count(f"| `{room}` |") != 1] == []
    assert [room for room in LIMITS if not (ROOT / room).is_dir()] == []
    assert budgets(written(page, FOUND)) == FOUND


def test_what_counts_as_code():
    source = '"""Doc."""\n\nimport os  # b\nfrom a import (\n    b,\n)\n\n# comment\n'
    assert code(source) == 0
    source += (
        'X = """\n\ntext"""\n"""What X is."""\n\n\ndef f(x):\n    """Doc\n    f."""\n'
    )
    assert code(source) == 3
    source += (
        '    import a\n    y = f"""\n    {x}\n    """\n    return (\n        y\n    )\n'
    )
    assert code(source) == 9


def text_at(commit: str | None, name: str) -> str:
    """A file of a commit; None: as it is on the disk."""
    if commit is None:
        return (ROOT / name).read_text("utf-8")
    words = ["git", "show", f"{commit}:./{name}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True)
    if done.returncode:  # no git, no checkout, or a clone of the last commit alone
        pytest.skip("not a checkout: git does not list its files")
    return done.stdout.decode("utf-8")


def raised(before: str, after: str) -> list[str]:
    """The rooms whose number is larger in the second text of CONTRIBUTING."""
    old, new = budgets(before), budgets(after)
    return [room for room in old if new.get(room, 0) > old[room]]


@pytest.mark.parametrize(("before", "after"), COMMITS)
def test_a_raise_is_in_the_changelog_of_the_same_commit(before, after):
    pages = [text_at(commit, "CONTRIBUTING.md") for commit in (before, after)]
    rooms = raised(*pages)
    old, new = (text_at(commit, "CHANGELOG.md") for commit in (before, after))
    lines = {*new.splitlines()} - {*old.splitlines()}
    assert lines or not rooms, f"CHANGELOG.md does not say why {rooms} grew"
