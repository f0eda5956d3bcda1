"""The page of results is what the frameworks that are installed here answer."""

import pytest

for framework in ("trl", "verl", "liger_kernel"):
    pytest.importorskip(framework, reason=f"{framework} is not installed")

import report


@pytest.mark.parametrize("name", ["trl", "verl", "liger"])
def test_every_difference_is_explained_on_the_page(name):
    title, answers = report.answers(name)
    text = report.PAGE.read_text(encoding="utf-8")
    assert f"## {title}\n" in text and sum(a.outcome == "agrees" for a in answers) > 80
    for a in answers:
        assert a.outcome in ("agrees", "not implemented") or a.reading, a.case.name
        assert all(f"**{part}.**" in text for part in report.parts(a))
    on_page = [line.split()[:3] for line in text.splitlines()]
    for line in report.table.shown(answers, title).splitlines()[2:]:
        assert line.split()[:3] in on_page, line
