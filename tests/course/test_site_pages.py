"""The site's made pages say what the code says, and leave no cell empty."""

import base64
import html
import io
import json
import re
import sys
from dataclasses import replace

import nbformat
import pytest
from fontTools.ttLib import TTFont

from course.kit import claims, methods
from course.kit.exercise import exercises
from experiments.claims import CLAIMS, SECOND
from refimpl import warm_start
from refimpl.algorithms import ALGORITHMS
from refimpl.tasks.arithmetic import habit
from web import (
    bibliography,
    build,
    cheat_sheet,
    instructor,
    ledger,
    two_rewards,
)
from web.exercises import Part, gathered
from web.markdown import markdown
from web.mathematics import DRAWN, font, mathml
from web.page import NOTEBOOKS, Page, prose, text_of


def chapter(path) -> Page:
    """A chapter as a page without its pictures."""
    text = prose(path.stem)
    title = text.splitlines()[0].lstrip("# ")
    return Page(f"{path.stem}.html", title, markdown(text), "Chapters", path)


@pytest.fixture(scope="module")
def chapters() -> list[Page]:
    return [chapter(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]


def test_the_arrows_of_a_chapter_follow_the_core_path_or_lead_into_an_elective():
    names = "00_a 01_a 02_ppo 02b_kl 03_grpo 13_real 14_out 19_end after".split()
    core = {"00_a", "01_a", "02_ppo", "03_grpo", "13_real", "after"}
    pages = [
        Page(f"{name}.html", name, "", build.CORE if name in core else build.ELECTIVES)
        for name in names
    ]
    leads = {
        page.title: [one.title for _, one in build.arrows(page, pages)]
        for page in pages
    }
    assert leads["01_a"] == ["00_a", "02_ppo"]
    assert leads["02_ppo"] == ["01_a", "03_grpo", "02b_kl"]
    assert leads["02b_kl"] == ["14_out", "03_grpo"]
    assert leads["13_real"] == ["03_grpo", "after", "14_out"]
    assert leads["19_end"] == ["14_out", "after"]


@pytest.fixture(scope="module")
def made(chapters) -> dict[str, Page]:
    return {page.file: page for page in build.made(chapters)}


EMPTY = r"<(t[dh]|d[dt]|li|h[1-3])\b[^>]*>\s*</\1>"


def test_no_cell_is_empty_and_every_page_has_a_title(made):
    for name, page in made.items():
        empty = re.findall(EMPTY, page.body)
        assert not empty and page.body.count("<h1 ") == 1, (name, empty)


def test_of_a_new_method_what_nobody_wrote_is_left_out(monkeypatch):
    new = replace(ALGORITHMS["gspo"], name="new", normaliser=lambda mask: mask)
    monkeypatch.setitem(ALGORITHMS, "new", new)
    monkeypatch.setitem(sys.modules, "refimpl.algorithms.new", cheat_sheet)
    rows = {name: cell for name, cell in cheat_sheet.cells(new).items() if cell}
    assert [*rows] == ["new", "advantage", "normaliser", "defaults", "see"]
    assert "chapter" not in rows["see"]
    _, sheet = cheat_sheet.page("").body.split('id="new"')
    assert "<pre" in sheet and not re.search(EMPTY, sheet)


FORMULAS = r"""\sqrt{x} \sqrt[3]{x} \hat{x} \bar{x} \tilde{x} \vec{x} \dot{x} \ddot{x}
\overline{xy} \underline{x} \overbrace{x}^{n} \underbrace{x}_{n} \widehat{xy}
\xrightarrow{a} \left\{x\right\} \left\lfloor\frac{x}{2}\right\rfloor
\left\lceil\frac{x}{2}\right\rceil \left\langle\frac{x}{2}\right\rangle
\left|\frac{x}{2}\right| \lVert\frac{x}{2}\rVert \begin{cases}a&b\\c&d\end{cases}
\begin{pmatrix}a\\b\end{pmatrix} \binom{n}{k} \mathbb{E} \mathcal{L} x' hH \nabla
\operatorname{KL} \theta\varepsilon\epsilon\phi\varphi\lambda\Lambda \partial \ldots
\sum_{i}^{n} \prod \int \propto \sim \approx \leq \geq \neq \in \notin \to \cdots
\odot \oplus \lesssim \triangleq \infty \pm \cdot \times \div""".split()


def test_the_font_has_every_sign_of_a_formula():
    """Also in italics; and what makes a root as high as what is under it."""
    formulas = "".join(map(mathml, FORMULAS))
    letters = TTFont(io.BytesIO(font(formulas)))
    needed = DRAWN | set(html.unescape(re.sub("<[^>]*>", "", formulas)))
    known = letters.getBestCmap()
    assert {c for c in needed if ord(c) not in known} <= {chr(0x1D455)}  # ℎ is h
    made = letters["MATH"].table.MathVariants.VertGlyphCoverage.glyphs
    assert known[ord("√")] in made


def test_the_ledger_has_the_stored_verdicts_and_every_run_with_its_curve(made):
    body = made["ledger.html"].body
    found = re.findall(r'id="claim-(\w+)".*?data-verdict="([^"]+)"', body)
    lines = claims.judged() + claims.seconds()
    assert dict(found) == {c["claim"]: c["verdict"] for c in lines}
    script = made["ledger.html"].files["ledger-data.js"].decode()
    cells = json.loads(script.removeprefix("ledger(").removesuffix(");"))
    assert sum(len(cell["runs"]) for cell in cells) == len(claims.everything())
    owned = {str(number) for cell in cells for number in cell["claims"]}
    assert (
        owned == {str(claim.number) for claim in (*CLAIMS, *SECOND)} == {*dict(found)}
    )
    last = claims.everything().index[-1]
    drawn = [byte / 250 for byte in base64.b64decode(ledger.curve(last))]
    assert drawn == pytest.approx(claims.rows_of(last)["reward"].to_list(), abs=0.0021)


def test_the_bibliography_has_what_is_cited_and_no_more():
    """A title may be unknown where a method without a chapter alone cites the paper."""
    cited, known = bibliography.cited(), set(methods.KNOWN.papers)
    assert known <= set(cited)
    new = {f"{name}.py" for name in ALGORITHMS if not methods.of(name).chapter}
    unknown = {path.name for paper in set(cited) - known for path in cited[paper]}
    assert unknown <= new | {"methods.md"}  # the guide's row of it


def test_the_instructor_has_every_exercise(made, chapters):
    every = [one for page in chapters for one in instructor.told(page).asked]
    opened = instructor.OPEN
    checked = {one.key for one in every if one.kind != opened}
    known = exercises()
    assert checked == known.keys()
    assert all(1 <= one.minutes <= 60 for one in every if one.kind != opened)
    assert {one.difficulty for one in every} <= {1, 2, 3, 4, 5}
    titles = {one.key: one.title for one in every}
    text = text_of(made["instructor.html"].body)
    assert all(f"{one.key} {one.title}" in text for one in every)
    leads = [name for name, page in made.items() if "solutions.html" in page.body]
    assert leads == ["instructor.html"] and not made["solutions.html"].group
    solved = text_of(made["solutions.html"].body)
    assert all(f"{key} {titles[key]}" in solved for key in known)
    assert all(one.solution.__name__ in solved for one in known.values() if one.cases)


def test_a_page_shows_what_is_to_be_typed_and_no_call_of_the_checker():
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        sections = [*gathered([Part(cell, "") for cell in cells], path.name)]
        for key, exercise in exercises().items():
            head = f'data-key="{key}"'
            if exercise.cases and (own := [one for one in sections if head in one]):
                asked = text_of(own[0]).partition("Write it in the notebook")[0]
                assert "def " in asked and "check (" not in asked, key


def test_the_start_pages_run_is_chapter_00s():
    """Stored for both rewards; where it starts from is asked again."""
    told = json.loads(two_rewards.FILE.read_text(encoding="utf-8"))
    assert [len(told[name]) for name in two_rewards.REWARDS] == [17, 17]
    chapter = (NOTEBOOKS / "00_start_here.ipynb").read_text(encoding="utf-8")
    same = "rollouts={rollouts}, learning_rate={learning_rate:.0e}, eval_every="
    settings = same.format(**two_rewards.SETTINGS).replace("e-04", "e-4")
    assert settings in chapter and two_rewards.SETTINGS["seed"] == told["seed"] == 0
    steps, right = told["steps"], told["right"]
    assert steps[-1]["paid"] > 0.9 > 2 * steps[0]["paid"]
    assert steps[-1]["right"] < 0.05 and right[-1]["right"] > 2 * steps[0]["right"]
    assert all(one["paid"] == one["right"] for one in right)
    answers = [text for text, *_ in steps[0]["answers"]]
    assert set(map(habit, answers)) == {"careful", "guess", "ramble"}
    assert all(habit(text) == "ramble" for text, *_ in steps[-1]["answers"])
    model, tokenizer, _ = warm_start()
    for name, reward in two_rewards.REWARDS.items():
        now = two_rewards.stop(model, tokenizer, reward, problems=256)
        for kind in ("paid", "right"):
            assert now[kind] == pytest.approx(told[name][0][kind], abs=0.1)
