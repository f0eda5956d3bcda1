"""The parts that pages are made of, by hand."""

import json

import pytest

from refimpl.algorithms import ALGORITHMS
from web import anywhere, build, cheat_sheet, flags, glossary, start, two_rewards
from web.markdown import headed, in_prose, markdown
from web.mathematics import mathml, on_a_line
from web.page import Page, sized, slug, text_of


def test_a_gate_in_words_and_as_a_path():
    tried = "at the ratios 0.5, 0.9, 1.1, 1.5, 2.0: where the advantage is positive"
    given = "1, 1, 1, 0, 0; where it is negative 0, 1, 1, 1, 1."
    assert cheat_sheet.said(ALGORITHMS["grpo"]) == f"The gate of GRPO {tried} {given}"
    sampled = cheat_sheet.said(ALGORITHMS["ipo"])
    assert sampled.startswith(
        f"The gate of IPO, for a token of probability 0.3, {tried}"
    )
    corners = [  # 200 wide is a ratio of 3, 64 high a gate of 1.5, drawn from the top
        [tuple(map(float, x.split())) for x in path[1:].split("L")]
        for path in (cheat_sheet.path(ALGORITHMS["grpo"], sign) for sign in (1, -1))
    ]
    closes, opens = corners
    assert max(x for x, y in closes if y < 22) == pytest.approx(80, abs=0.7)
    assert max(x for x, y in opens if y > 63) == pytest.approx(53.3, abs=0.7)
    assert {y for x, y in closes} == {21.3, 64.0}


def test_sources_and_settings_as_they_are_typed():
    found = flags.marked("`x<1`, o/r/a/b.py@0123456789, o/r#7, https://h.org/p/q")
    at = "https://github.com/o/r"
    assert found == (
        f'<code>x&lt;1</code>, <a href="{at}/blob/0123456789/a/b.py" '
        'title="o/r/a/b.py@0123456789">b.py@0123456789</a>, '
        f'<a href="{at}/issues/7" title="o/r#7">r#7</a>, '
        '<a href="https://h.org/p/q" title="https://h.org/p/q">q</a>'
    )
    broken = "<code>a=1</code><br><code>b=2</code><br>c (d)<br>e, f"
    assert flags.typed("`a=1`, `b=2`, c (d), e, f") == broken
    link = '<a href="https://arxiv.org/abs/2504.05118">2504.05118</a>'
    assert cheat_sheet.paper("<A> 2504.05118") == f"&lt;A&gt; {link}"
    body = '<h2 id="elsewhere">x</h2>'
    page = build.with_flags(Page("04_dr_grpo.html", "t", body))
    assert 'href="flags.html#dr_grpo"' in page.body
    assert anywhere.known("a/b") == "https://github.com/a/b"
    assert anywhere.known("https://h.org/a/") == "https://h.org/a"
    copied = json.loads(anywhere.copy("01_policy_gradient.ipynb", "https://h.org/a"))
    first, second = copied["cells"][:2]
    assert '"https://h.org/a", str(clone)' in "".join(first["source"])
    assert "".join(second["source"]).startswith("# 01")


def test_words_anchors_and_sizes():
    assert slug("GRPO 2.0: `why`? ε") == "grpo-2.0-why-ε"
    assert text_of("<p>a<b>b</b>c</p><p>d &amp; e</p>") == "abc d & e"
    assert sized(300, 600, 401) == 'width="300" height="200" loading="lazy"'
    aside = '<h1 id="a">T <b>1</b></h1>\n<p><em>elective</em></p>\n<p>First.</p><p>x'
    assert headed(aside, "n") == ("T 1", "First.")
    prose = "a <code>a</code> <P>a</P> <a><b>a</b></a> a"
    assert in_prose(prose, str.upper) == "A <code>a</code> <P>A</P> <a><b>a</b></a> A"
    table = markdown("| a | b | verdict |\n|-|-|-|\n| 1 | 2 | 3 |")
    assert table.count('class="message"') == 2
    assert '<th class="message">verdict' in table and '<td class="message">3' in table
    whole = '<h1 id="x">1<a></a></h1>w <pre>no</pre>v<h2 id="y">2</h2>$'
    assert build.sections(Page("", "", whole)) == [("x", "1", "w v"), ("y", "2", "$")]
    assert glossary.term_of("clip range <math>ε</math> (ε), bound") == "clip range"
    symbols = [glossary.letters(x) for x in ("π_<i>old</i>", "A^", "<i>r</i>_t")]
    assert symbols == ["π_old", "A^", "r"]
    picture = Page("", "", '<img src="a.png"><img src="img/1.png" alt="x" width="9">')
    assert start.image(picture) == '<img src="img/1.png" alt="" width="9">'
    assert two_rewards.pays_for_steps([], ["1;2", ";" * 9]) == [1 / 6, 1.0]
    assert two_rewards.lines([1, {"a": 2}]) == '[\n1,\n{"a": 2}\n]'


@pytest.mark.parametrize(
    ("formula", "line"),
    [
        (r"\frac{G-1}{G}", "(G−1)/G"),
        ("p^{G-1}", "p^(G−1)"),
        ("o_{i-1}", "o_i−1"),
        (r"\hat A", "Â"),
        (r"\sqrt{x+1}", "√(x+1)"),
        (r"\tau_{\mathrm{neg}}^{2-k}", "τ_neg^(2−k)"),
    ],
)
def test_a_formula_on_a_line(formula, line):
    assert on_a_line(mathml(formula)) == line


def test_a_displayed_formula_may_break_before_a_relation_outside_brackets():
    parts = mathml("a=b(c=d)+e=f", "block").split("<wbr>")
    assert [text_of(part) for part in parts] == ["a", "=b(c=d)+e", "=f"]
    assert "<wbr>" not in mathml("a=b") and "<wbr>" in mathml("a=" + "b" * 23)
    with pytest.raises(ValueError, match=r"what is \\fracc"):
        mathml(r"\fracc x")


def test_where_a_page_leads():
    """Back and on in its group, across to what comes next in the other."""
    files = {"01": build.CORE, "02": build.CORE, "02b": build.ELECTIVES}
    files |= {"03": build.CORE, "04": build.ELECTIVES}
    pages = [Page(f"{n}_x.html", n, "", group) for n, group in files.items()]
    leads = {
        page.title: [f"{rel} {to.title}" for rel, to in build.arrows(page, pages)]
        for page in pages
    }
    assert leads == {
        "01": ["next 02"],
        "02": ["prev 01", "next 03", "next 02b"],
        "02b": ["next 04", "next 03"],
        "03": ["prev 02", "next 04"],
        "04": ["prev 02b"],
    }
