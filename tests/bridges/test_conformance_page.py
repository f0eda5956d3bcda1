"""The page of results is what the frameworks that are installed here answer."""

import pytest

pytest.importorskip("trl", reason="TRL, verl, Liger: tests/bridges/requirements.txt")
pytest.importorskip("verl", reason="TRL, verl, Liger: tests/bridges/requirements.txt")
pytest.importorskip(
    "liger_kernel", reason="TRL, verl, Liger: tests/bridges/requirements.txt"
)

import report


@pytest.mark.parametrize("name", report.ENGINES)
def test_every_difference_is_explained_on_the_page(name):
    title, answers = report.answers(name)
    assert sum(a.outcome == "agrees" for a in answers) > 20
    assert report.unexplained(answers) == []
    on_page = [line.split()[:3] for line in report.BEFORE.splitlines()]
    for line in [f"## {title}", *report.table.shown(answers, title).splitlines()]:
        assert line.split()[:3] in on_page, line
