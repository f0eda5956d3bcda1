"""The page of results is what the frameworks that are installed here answer."""

import pytest

pytest.importorskip("trl", reason="TRL is not installed")
pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("liger_kernel", reason="Liger is not installed")

import report


@pytest.mark.parametrize("name", ["trl", "verl", "liger"])
def test_every_difference_is_explained_on_the_page(name):
    title, found = report.answers(name)
    text = report.PAGE.read_text(encoding="utf-8")
    assert f"## {title}\n" in text
    assert sum(f.said == "agrees" for f in found) > 80
    for f in found:
        if f.said == "not implemented":
            continue
        assert f.said == "agrees" or f.reading, f.case.name
        for part in (f.reading or "").split(", and ") if f.reading else ():
            assert f"**{part}.**" in text
    for line in report.table.shown(found, title).splitlines()[2:]:
        assert any(line.split()[:3] == x.split()[:3] for x in text.splitlines()), line
