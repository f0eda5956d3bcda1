"""The parts that pages are made of, by hand."""

import json
import re

from refimpl.algorithms import ALGORITHMS
from web import anywhere, build, cheat_sheet, flags, glossary
from web.markdown import headed, in_prose, markdown, typeset
from web.mathematics import mathml, on_a_line
from web.page import NOTEBOOKS, Page, sized, slug, text_of


def test_a_gate_that_leaves_its_frame_comes_back_as_a_line_of_its_own():
    assert cheat_sheet.path(ALGORITHMS["vespo"], 1.0).count("M") == 2


def test_a_method_in_words():
    tried = "at the ratios 0.5, 0.9, 1.1, 1.5, 2.0: where the advantage is positive"
    given = "1, 1, 1, 0, 0; where it is negative 0, 1, 1, 1, 1."
    assert cheat_sheet.said(ALGORITHMS["grpo"]) == f"The gate of GRPO {tried} {given}"
    sampled = f"The gate of IPO, for a token of probability 0.3, {tried}"
    assert cheat_sheet.said(ALGORITHMS["ipo"]).startswith(sampled)
    cells = cheat_sheet.cells(ALGORITHMS["dapo"])
    assert cells["new"].startswith("against GRPO: clip")
    assert (cells["TRL"][:9], cells["verl"][:13]) == ("loss_type", "loss_agg_mode")
    assert "L79.7 21.3L80.1 64.0L" in cheat_sheet.path(ALGORITHMS["grpo"], 1.0)
    assert cheat_sheet.tex("gspo")[-1].startswith("J=")


def test_sources_and_settings_as_they_are_typed():
    found = flags.marked("`x<1`, o/r/a/b.py@0123456789, o/r#7, https://h.org/p/q")
    code, file, issue, page = found.split(", ")
    assert code == "<code>x&lt;1</code>"
    at = '<a href="https://github.com/o/r'
    assert file.startswith(
        f'{at}/blob/0123456789/a/b.py" title="o/r/a/b.py@0123456789"'
    )
    assert file.endswith(">b.py@0123456789</a>")
    assert issue == f'{at}/issues/7" title="o/r#7">r#7</a>'
    assert page == '<a href="https://h.org/p/q" title="https://h.org/p/q">q</a>'
    broken = "<code>a=1</code><br><code>b=2</code><br>c (d)<br>e, f"
    assert flags.typed("`a=1`, `b=2`, c (d), e, f") == broken
    section = Page("04_dr_grpo.html", "t", '<h2 id="elsewhere">x</h2>')
    assert 'href="flags.html#dr_grpo"' in build.with_flags(section).body


def test_a_chapter_is_opened_in_colab_in_codespaces_or_from_a_download():
    ways = dict(anywhere.ways("03_grpo.ipynb", anywhere.known("a/b")))
    assert ways["Codespaces"] == "https://codespaces.new/a/b"
    assert ways["Open in Colab"].endswith("/github/a/b/blob/colab/03_grpo.ipynb")
    elsewhere = anywhere.ways("03_grpo.ipynb", anywhere.known("https://h.org/a/"))
    own = "https://h.org/a/blob/main/notebooks/03_grpo.ipynb"
    assert elsewhere == [("Open this notebook", own), ("Download", "run/03_grpo.ipynb")]


def test_words_anchors_and_sizes():
    assert slug("GRPO 2.0: `why`? ε") == "grpo-2.0-why-ε"
    assert text_of("<p>a<b>b</b>c</p><p>d &amp; e</p>") == "abc d & e"
    assert sized(300, 600, 401) == 'width="300" height="200" loading="lazy"'
    aside = '<h1 id="a">T <b>1</b></h1>\n<p><em>elective</em></p>\n<p>First.</p><p>x'
    assert headed(aside, "n") == ("T 1", "First.")
    prose = "a <code>a</code> <P>a</P> <a><b>a</b></a> a"
    assert in_prose(prose, str.upper) == "A <code>a</code> <P>A</P> <a><b>a</b></a> A"
    table = markdown("| a | b | verdict |\n|-|-|-|\n| 1 | 2 | 3 |")
    assert "message" not in markdown("| a | b | verdict | c |\n|-|-|-|-|")
    assert '<th class="message">verdict' in table and '<td class="message">3' in table
    whole = '<h1 id="x">1<a></a></h1>w <pre>no</pre>v<h2 id="y">2</h2>$'
    assert build.sections(Page("", "", whole)) == [("x", "1", "w v"), ("y", "2", "$")]
    assert glossary.term_of("clip range <math>ε</math> (ε), bound") == "clip range"
    assert on_a_line(mathml(r"\frac{G-1}{G}+p_i^{G-1}")) == "(G−1)/G+p_i^(G−1)"
    barred = mathml(r"\bar R-\overline{\log\pi}")  # no font stretches a macron
    assert barred.count('class="bar"') == 2 and "mover" not in barred
    assert on_a_line(mathml(r"\bar A")) == "Ā"
    steps = mathml(r"\begin{aligned}a&=b+c&&\text{(why } b)\\d&=e\end{aligned}")
    cells = re.findall(r"<mtd[^>]*>(.*?)</mtd>", steps)
    assert all(re.fullmatch(r"<mrow>.*</mrow>|<mrow />", cell) for cell in cells)
    raised = mathml(r"f(a)[(x)-(-y)]^2")  # the whole bracket; the second minus is unary
    assert (
        '<msup><mrow><mo stretchy="false">[</mo><mo stretchy="false">(</mo>' in raised
    )
    assert raised.count('form="prefix"') == 1 and raised.endswith(
        "</msup></mrow></math>"
    )
    whole = "π<sub>old</sub> = −1, n\u00a0=\u00a05 (0.1\u00a0to\u00a00.2), a-1, 2-3"
    assert typeset("π_old = -1, n = 5 (0.1 to 0.2), a-1, 2-3") == whole
    raised = "Ā<sub>i</sub>, mean<sub>j≠i</sub>, e<sup>−0.4</sup>, 1<sup>(1/n)</sup>."
    assert typeset("Ā_i, mean_{j≠i}, e^−0.4, 1^(1/n).") == raised
    assert markdown("`critic.optim_rate`") == (
        "<p><code>critic.<wbr>optim_<wbr>rate</code></p>\n"
    )
    parts = mathml("a=b(c=d)+e=f", "block").split("<wbr>")
    assert [text_of(part) for part in parts] == ["a", "=b(c=d)+e", "=f"]


def test_where_a_page_leads():
    """Back and on in its group, across to what comes next in the other."""
    core, more = [[n, build.CORE] for n in ("01", "02", "03")], build.ELECTIVES
    pages = [Page(f"{n}_x", n, "", g) for n, g in sorted([*core, ["02b", more]])]
    leads = {p.title: [to.title for _, to in build.arrows(p, pages)] for p in pages}
    assert leads == {
        "01": ["02"],
        "02": ["01", "03", "02b"],
        "02b": ["02", "03"],
        "03": ["02"],
    }


def test_a_symbol_is_explained_by_its_own_row_and_only_where_it_means_that():
    """w g r Â begins with w, too; in chapter 13, c is a number of right answers."""
    table = "<tr><td>w</td><td>weight</td></tr><tr><td>w g r</td><td>push</td></tr>"
    page = Page("notation.html", "", table, "")
    known = json.loads(glossary.script(page).decode()[len("courseGlossary(") : -2])
    assert known["symbols"] == {"w": ["w", "weight"]}
    assert "c" in known["otherwise"]["13_real_model"]
    assert {*known["otherwise"]} <= {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
