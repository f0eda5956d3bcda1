"""The site's made pages say what the code says, and leave no cell empty."""

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fontTools.ttLib import TTFont

from course.kit import claims, elsewhere, methods
from course.kit.exercise import exercises
from experiments.claims import CLAIMS, SECOND
from refimpl import warm_start
from refimpl.algorithms import ALGORITHMS
from refimpl.cli import main
from refimpl.tasks.world import habit
from web import (
    bibliography,
    build,
    cheat_sheet,
    instructor,
    ledger,
    llms,
    read_log,
    start,
)
from web.browser import CHROMIUM, MISSING
from web.markdown import markdown
from web.mathematics import font, mathml, signs
from web.page import NOTEBOOKS, Page, size_of, text_of
from web.pictures import two_rewards
from web.slides import file_of


def prose(path) -> Page:
    """A chapter as a page without its pictures."""
    text = instructor.prose(path.stem)
    title = text.splitlines()[0].lstrip("# ")
    return Page(f"{path.stem}.html", title, markdown(text), "Chapters", path)


@pytest.fixture(scope="module")
def chapters() -> list[Page]:
    return [prose(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]


@pytest.fixture(scope="module")
def made(chapters) -> dict[str, Page]:
    return {page.file: page for page in build.made(chapters)}


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        (r"o_{i,t}", "o_i,t"),
        (r"p^G+(1-p)^G", "p^G+(1−p)^G"),
        (r"\frac{G-1}{G}", "(G−1)/G"),
        (r"\hat A_i<\frac13", "Â_i<1/3"),
        (r"e^{x/2}\sqrt{n+1}", "e^(x/2)√(n+1)"),
    ],
)
def test_a_formula_is_not_flattened_where_the_search_shows_it(formula, said):
    page = Page("x.html", "x", f'<h1 id="x">x</h1> Let {mathml(formula)} be')
    assert build.sections(page) == [("x", "x", f"Let {said} be")]


def test_no_cell_is_empty_and_every_page_has_a_title(made):
    for name, page in made.items():
        empty = re.findall(r"<(t[dh]|d[dt]|li|h[1-3])\b[^>]*>\s*</\1>", page.body)
        assert not empty and page.body.count("<h1 ") == 1, (name, empty)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_cheat_sheet_has_what_the_registry_has(name):
    algorithm, card = ALGORITHMS[name], cheat_sheet.card(ALGORITHMS[name])
    every = {**algorithm.defaults, **algorithm.training}
    said = [algorithm.title, algorithm.changed, algorithm.paper]
    said += [f"{key}={value}" for key, value in every.items()]
    said += [elsewhere.text(name, engine) for engine in elsewhere.ENGINES]
    known = methods.of(name)
    if known.misreading:
        said += [cheat_sheet.misreading(known.misreading).claim]
    assert all(one in text_of(card) for one in said)
    assert f'aria-label="{cheat_sheet.said(algorithm)}"' in card
    assert ("<math" in card) != ("<pre" in card)  # a formula, once
    if known.chapter:
        assert algorithm.title in instructor.prose(known.chapter)


def test_a_method_with_a_chapter_is_known_everywhere():
    for known in methods.KNOWN.method.values():
        if known.chapter:
            assert known.misreading and known.look
            assert known.engines.keys() == methods.KNOWN.engines.keys()


def test_of_a_new_method_what_nobody_wrote_is_left_out(monkeypatch):
    new = replace(ALGORITHMS["gspo"], name="new", normaliser=lambda mask: mask)
    monkeypatch.setitem(ALGORITHMS, "new", new)
    monkeypatch.setitem(sys.modules, "refimpl.algorithms.new", cheat_sheet)
    rows = cheat_sheet.cells(new)
    assert [*rows] == ["new", "advantage", "normaliser", "defaults", "see"]
    assert all(rows.values()) and "chapter" not in rows["see"]
    assert "<pre" in cheat_sheet.card(new)


def test_a_gate_is_drawn_where_the_loss_has_it():
    grpo = cheat_sheet.said(ALGORITHMS["grpo"])
    assert "positive 1, 1, 1, 0, 0; where it is negative 0, 1, 1, 1, 1." in grpo


FORMULAS = r"""\sqrt{x} \sqrt[3]{x} \hat{x} \bar{x} \tilde{x} \vec{x} \dot{x} \ddot{x}
\overline{xy} \underline{x} \overbrace{x}^{n} \underbrace{x}_{n} \widehat{xy}
\xrightarrow{a} \left\{x\right\} \left\lfloor\frac{x}{2}\right\rfloor
\left\lceil\frac{x}{2}\right\rceil \left\langle\frac{x}{2}\right\rangle
\left|\frac{x}{2}\right| \lVert\frac{x}{2}\rVert \begin{cases}a&b\\c&d\end{cases}
\begin{pmatrix}a\\b\end{pmatrix} \binom{n}{k} \mathbb{E} \mathcal{L} x' hH \nabla
\operatorname{KL} \theta\varepsilon\epsilon\phi\varphi\lambda\Lambda \partial \ldots
\sum_{i}^{n} \prod \int \propto \sim \approx \leq \geq \neq \in \notin \to \cdots
\odot \oplus \lesssim \triangleq \infty \pm \cdot \times \div""".split()


def test_a_root_and_names_in_italics_are_signs_that_the_browser_writes():
    of = {r"\sqrt{2}": {"√", "2"}, "x": {"x", "𝑥"}, "h": {"h", "ℎ"}, "λ": {"λ", "𝜆"}}
    assert {formula: signs(mathml(formula)) for formula in of} == of


def test_a_displayed_formula_may_break_at_relations_outside_of_brackets():
    two = mathml(r"J = a + b, \quad g(\{x < 1\}) \le c", "block").split("<wbr>")
    assert ["".join(re.findall(">([^<]+)<", part)) for part in two] == [
        "J",
        "&#x0003D;a&#x0002B;b&#x0002C;",
        "g&#x00028;&#x0007B;x&#x0003C;1&#x0007D;&#x00029;",
        "&#x02264;c",
    ]
    powers = r"\operatorname{TV}\big(a = b\big)^2 = c"  # the bracket is a power's base
    assert mathml(powers, "block").count("<wbr>") == 1
    spaced = mathml(r"\begin{cases} a & b \\[2pt] c & d \end{cases}")
    assert "2pt" not in spaced and spaced.count("<mtr>") == 2
    rows = r"\begin{aligned} a &= b && \text{why} \\ &= c \end{aligned}"
    assert mathml(rows, "block").count("<mtr>") == 2 and "&</m" not in mathml(rows)
    assert mathml(r"\mathbb E x") == mathml(r"\mathbb{E} x") != mathml("E x")
    bars = mathml(r"\big|x\big| \le \Big\|y\Big\|")  # as tall behind as before
    assert bars.count('<mo stretchy="true" lspace="0" rspace="0" minsize=') == 4


def test_the_column_that_is_a_tables_message_is_marked():
    table = markdown("| a | b | verdict |\n|---|---|---|\n| 1 | 2 | so |")
    assert re.findall(r'<t[hd] class="message">(\w+)', table) == ["verdict", "so"]
    assert "message" not in markdown("| a | verdict |\n|---|---|\n| 1 | so |")


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_font_has_every_sign_of_a_formula(formula):
    needed = signs(mathml(formula))
    letters = TTFont(io.BytesIO(font(needed)))
    assert {ord(sign) for sign in needed - {" "}} <= letters.getBestCmap().keys()
    if "√" in needed:  # with what makes it as high as what is under it
        made = letters["MATH"].table.MathVariants.VertGlyphCoverage.glyphs
        assert letters.getBestCmap()[ord("√")] in made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_cheat_sheet_prints_on_four_sheets(made, tmp_path):
    files = build.render(build.Site([made["cheat_sheet.html"], *build.guide()]))
    build.write(files, tmp_path / "site")
    flags = "--headless --no-sandbox --disable-gpu --no-pdf-header-footer".split()
    address = (tmp_path / "site/cheat_sheet.html").as_uri()
    printed = f"--print-to-pdf={tmp_path / 'sheet.pdf'}"
    subprocess.run([CHROMIUM, *flags, printed, address], check=True, timeout=120)
    sheets = made["cheat_sheet.html"].body.count('<div class="sheet">')
    printed = (tmp_path / "sheet.pdf").read_bytes().count(b"/Type /Page\n")
    assert printed == sheets == len(cheat_sheet.STARTS) >= 4


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


def test_the_page_on_logs_shows_what_the_command_prints(made, capsys):
    """Of the same file, with six curves whose alternative text says what is seen."""
    assert main(["read-log", str(read_log.EXAMPLE)]) == 0
    printed = capsys.readouterr().out.replace(str(read_log.EXAMPLE), "hack.csv")
    page = made["read_log.html"]
    assert " ".join(printed.split()) in text_of(page.body)
    assert size_of(page.files[read_log.PICTURE])[0] > 1000
    assert "accuracy falls from" in re.search(r'alt="([^"]*)"', page.body)[1]


def test_the_bibliography_has_what_is_cited_and_no_more():
    """A title may be unknown where a method without a chapter alone cites the paper."""
    cited, known = bibliography.cited(), set(methods.KNOWN.papers)
    assert known <= set(cited)
    new = {f"{name}.py" for name in ALGORITHMS if not methods.of(name).chapter}
    unknown = {path.name for paper in set(cited) - known for path in cited[paper]}
    assert unknown <= new | {"methods.md"}  # the guide's row of it


def test_slides_end_with_what_to_remember(made, chapters):
    for one in chapters:
        body = made[file_of(one)].body
        assert one.title in text_of(body)
        end = re.search(r'id="(?:summary|remember)"(.*?)</section>', body, re.S)
        assert 3 <= end[1].count("<li>") <= 5, one.file


def test_the_instructor_has_every_exercise(made, chapters):
    every = [one for page in chapters for one in instructor.asked(page)]
    opened = instructor.OPEN
    checked = {one.key: one.minutes for one in every if one.kind != opened}
    known = exercises()
    assert checked == {key: one.minutes for key, one in known.items()}
    assert {one.difficulty for one in every} <= set(instructor.LEVELS)
    titles = {one.key: one.title for one in every}
    text = text_of(made["instructor.html"].body)
    assert all(f"{one.key} {one.title}" in text for one in every)
    leads = [name for name, page in made.items() if "solutions.html" in page.body]
    assert leads == ["instructor.html"] and not made["solutions.html"].group
    solved = text_of(made["solutions.html"].body)
    assert all(f"{key} {titles[key]}" in solved for key in known)
    assert all(one.solution.__name__ in solved for one in known.values() if one.cases)


def test_llms_txt_names_every_page_of_the_menu_with_a_sentence(made, chapters):
    menu = {"All": [*chapters, *(page for page in made.values() if page.group)]}
    lines = re.findall(r"^- \[.+?\]\((.+?)\): (.+)$", llms.listing(menu), re.M)
    assert [file for file, _ in lines[:-1]] == [page.file for page in menu["All"]]
    assert all(len(text) > 10 for _, text in lines)


def test_no_page_says_how_a_notebooks_picture_is_made_to_move():
    assert [p.file for p in build.chapters() if "Shift+Enter" in p.body] == []


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


def test_the_readme_begins_as_the_start_page_does(chapters):
    told = json.loads(two_rewards.FILE.read_text(encoding="utf-8"))
    top = start.FIRST.read_text(encoding="utf-8").partition("\n## ")[0]
    ends = f"to {told['steps'][-1]['paid']}", f"{told['right'][-1]['right']} are right"
    assert [one for one in ends if one not in top] == []
    body = start.page(chapters).body
    for begins in ("# ", "Reasoning models", "**This is", "**For you", "**Time"):
        words = re.search(re.escape(begins) + r"([^.`\n]*)", top)[1]
        assert re.sub(r"[*]", "", words).strip() in re.sub(r"<[^>]*>", "", body)


def test_the_readme_has_each_chapters_minutes_and_the_core_path(chapters):
    """Core and electives, and how long they take, are said once."""
    text = start.FIRST.read_text(encoding="utf-8")
    row = r"^\| \[[^]]*\]\(notebooks/(\w+)\.ipynb\) \| .* \| (\d+) \|$"
    rows = dict(re.findall(row, text, re.M))
    now = {Path(one.file).stem: instructor.minutes(one) for one in chapters}
    assert {name: int(n) for name, n in rows.items()} == now
    core = text.partition("The **electives**")[0]
    first = [name for name in rows if f"({'notebooks'}/{name}.ipynb) |" in core]
    assert [name.partition("_")[0] for name in first] == start.CORE
    assert "about ten hours" in core and 9 * 60 <= sum(now[n] for n in first) <= 11 * 60
