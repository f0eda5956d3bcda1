"""The committed notebooks were executed, in order, and promise what nbval can check."""

import ast
import json
import re
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from course.kit.exercise import RIGHT, exercises, judge, typed_cells
from tests.tools.pages import alternatives, folded, source
from tests.tools.pages import cells as load
from web.instructor import HEAD, KINDS, OPEN

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.stem != "10b_evidence"]
"""That one is an appendix, which has no exercises; 02b is an elective of its own."""
TAUGHT = [path for path in CHAPTERS if "## Remember" in path.read_text("utf-8")]
"""Chapters in the anatomy of the core path."""
HEADINGS = ["play", "exercises", "misreading"]

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def code(path: Path) -> list[dict]:
    return [c for c in load(path) if c["cell_type"] == "code" and source(c).strip()]


def ignored(cell: dict) -> bool:
    return "nbval-ignore-output" in cell["metadata"].get("tags", [])


def printed(cell: dict) -> str:
    """What a cell printed, and the tables that it showed."""
    tables = [o.get("data", {}).get("text/markdown", "") for o in cell["outputs"]]
    texts = [o.get("text", table) for o, table in zip(cell["outputs"], tables)]
    return "".join("".join(text) for text in texts)


def lines_of(text: str) -> list[str]:
    """Lines that are neither blank nor a comment."""
    return [x for x in text.splitlines() if x.strip() and not x.strip().startswith("#")]


def test_every_chapter_is_there_and_in_the_readme():
    numbers = [path.stem.split("_")[0] for path in CHAPTERS]
    plain = [number for number in numbers if number.isdigit()]
    assert plain == [f"{n:02}" for n in range(len(plain))]
    assert [number for number in numbers if number not in plain] == ["02b"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in NOTEBOOKS if f"(notebooks/{p.name})" not in readme] == []


def pairs(text: str) -> list[tuple[str, str]]:
    """Each line with the one before it, blank ones left out."""
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    return list(pairwise(lines))


def test_a_listing_shows_the_code_of_today():
    """nbval compares them too, but only where all of a chapter is run. A line more or
    less is seen by its neighbours; where a listing begins, the one before is another's.
    """
    library = [p.read_text("utf-8") for p in (ROOT / "refimpl").rglob("*.py")]
    today = {pair for text in library for pair in pairs(text)}
    begins = ("def ", "@", "class ")
    every = [(path.stem, cell) for path in NOTEBOOKS for cell in code(path)]
    listings = [one for one in every if "inspect.getsource" in source(one[1])]
    shown = [(name, x) for name, cell in listings for x in pairs(printed(cell))]
    assert len(shown) > 100
    stale = [(name, x) for name, x in shown if x not in today]
    assert [one for one in stale if not one[1][1].startswith(begins)] == []


@each
def test_every_cell_was_run_in_order_from_a_fresh_kernel_and_none_failed(path):
    """nbval passes a cell that was never run; this does not."""
    cells = code(path)
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(counts) + 1))
    assert "error" not in [o["output_type"] for cell in cells for o in cell["outputs"]]
    shown = json.dumps([cell["outputs"] for cell in cells])
    assert "%|" not in shown  # a bar
    assert "stderr" not in shown, "a warning, with a path of this machine"


@each
def test_a_claim_stands_with_what_is_not_compared(path):
    """Numbers of a run differ between machines; what they show is asserted."""
    cells = code(path)
    for cell, after in zip(cells, [*cells[1:], cells[-1]]):
        timed = "perf_counter" in source(cell)  # a speed is shown, never asserted
        if ignored(cell) and printed(cell) and not timed:
            assert "assert" in source(cell) + source(after), source(cell)[:60]
        # What is compared as text must not be a verdict on a run, nor rounding noise:
        # 2e-16 on one processor is 3e-16 on the next.
        verdict = re.search(r"\b(True|False)\b", printed(cell))
        noise = re.search(r"\d(?:\.\d+)?e-(?:0[89]|[1-9]\d)\b", printed(cell))
        assert not (verdict if ignored(cell) else noise), source(cell)[:60]
    assert "nbval-skip" not in json.dumps([c["metadata"] for c in cells])


def imports(text: str) -> list[ast.stmt]:
    kinds = ast.Import | ast.ImportFrom
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def names_of(node: ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name for alias in node.names}


@each
def test_a_chapter_opens_with_its_imports_and_little_code(path):
    """What is the course's own is imported in the first cell, and used."""
    first, *others = code(path)
    folder = path.stem.partition("_")[2]
    known = rf"(refimpl|experiments|course(\.kit|\.{folder})?)(\.|$)"
    named = [n for n in imports(source(first)) if isinstance(n, ast.ImportFrom)]
    ours = [n for n in named if re.match(r"(course|refimpl|experiments)\b", n.module)]
    assert [n.module for n in ours if not re.match(known, n.module)] == []
    for cell in others:
        mine = [ast.unparse(node) for node in imports(source(cell))]
        assert [
            one for one in mine if re.match(r"\w+ (course|experiments)\b", one)
        ] == []
    assert "import refimpl as rl" in source(first)
    rest = ast.walk(ast.parse("\n".join(map(source, (first, *others)))))
    used = {node.id for node in rest if isinstance(node, ast.Name)}
    offered = set().union(*map(names_of, ours))
    assert sorted(offered - used) == [], "imported, and never used"
    before = 0
    for cell in others:
        before += 0 if folded(cell) else len(lines_of(source(cell)))
        if any("image/png" in o.get("data", {}) for o in cell["outputs"]):
            break
    assert before <= 25, "code up to the first figure"


@each
def test_every_picture_has_its_words(path):
    assert "" not in alternatives(path)


def modules() -> dict[str, ast.Module]:
    """The files of the course and of its web edition, by the name they are imported."""
    found = {}
    folder = ROOT / "notebooks"
    rooms = folder / "course", folder / "web"
    for path in (path for room in rooms for path in room.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = ast.parse(path.read_text("utf-8"))
    return found


def test_the_course_knows_no_web_edition_and_no_import_runs_in_a_circle():
    """Imports in functions count, too."""
    trees = modules()
    graph = {}
    for name, tree in trees.items():
        asked = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        every = {(n.module, f"{n.module}.{a.name}") for n in asked for a in n.names}
        graph[name] = {part if part in trees else whole for whole, part in every}
        graph[name] &= trees.keys() - {name}
    TopologicalSorter(graph).prepare()  # CycleError, if there is one
    course = [name for name in graph if name.startswith("course")]
    assert [n for n in course if any(o.startswith("web") for o in graph[n])] == []
    below = {other for name in course if ".kit" in name for other in graph[name]}
    assert [name for name in below if not re.match(r"course(\.kit\b.*)?$", name)] == []


def test_every_chapter_has_a_folder_of_its_notebooks_name():
    folders = {path.parent.name for path in ROOT.glob("notebooks/course/*/__init__.py")}
    assert folders - {"kit"} == {path.stem.partition("_")[2] for path in CHAPTERS}


@each
def test_what_is_folded_is_folded_everywhere(path):
    """In JupyterLab (`source_hidden`) as on a page (the tag `hide-input`)."""
    for cell in load(path):
        hidden = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        assert hidden == folded(cell), source(cell)[:60]


@every_chapter
def test_a_chapter_opens_with_its_objectives(path):
    prose = [source(c) for c in load(path) if c["cell_type"] == "markdown"]
    assert re.search(r"^(\d\.|-) ", prose[0], re.M), "what a reader can do afterwards"


@every_chapter
def test_the_anatomy_is_complete_and_lines_of_code_are_short(path):
    prose = [source(c) for c in load(path) if c["cell_type"] == "markdown"]
    titles = " ".join(re.findall(r"^#+ (.*)$", "\n".join(prose), re.M)).lower()
    last = ["remember", "in our runs"] if path in TAUGHT else ["elsewhere", "summary"]
    assert [word for word in (*HEADINGS, *last) if word not in titles] == []
    if path in TAUGHT:
        assert "<summary>Settings in TRL and verl</summary>" in "".join(prose)
    shown = "\n".join(source(cell) for cell in code(path) if not folded(cell))
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    every = "\n".join(map(source, code(path)))
    figures = re.findall(r'plots\.show\(\w+, "([^"]+)"\)', every)
    assert [n for n in figures if not (ROOT / f"figures/{n}.png").exists()] == []


@pytest.mark.parametrize("path", TAUGHT, ids=lambda path: path.stem)
def test_a_typed_cell_is_empty_and_its_fold_holds_a_right_solution(path):
    """`name = typed("03.name", name)`; the next cell has the solution in a fold."""
    known, cells = typed_cells(), load(path)
    own = {key for key in known if key.split(".")[0] == path.stem.split("_")[0]}
    found = set()
    for cell, after in pairwise(cells):
        call = re.search(r'^(\w+) = typed\("([\w.]+)", (\w+)\)', source(cell), re.M)
        if cell["cell_type"] != "code" or not call:
            continue
        name, key, attempt = call.groups()
        assert name == attempt and key.partition(".")[2] == name
        assert "Nothing typed yet" in printed(cell)
        fold = r"<details><summary>Solution</summary>\s*```python\n(.*?)```"
        shown = re.search(fold, source(after), re.S)
        assert shown, f"no solution below {key}"
        space = {}
        exec("import math\nimport torch\n" + shown[1], space)
        assert judge(known[key], space[name])[0] == RIGHT, key
        found.add(key)
    assert found == own and (own or path.stem[:2] in ("00", "13"))


@every_chapter
def test_the_answer_to_a_prediction_is_folded(path):
    """What is run below a question whose answer it shows, up to the next prose."""
    kind, asked = "", False
    for cell in load(path):
        if cell["cell_type"] == "markdown":
            head = HEAD.match(source(cell))
            kind, asked = head["kind"] if head else "", False
        elif asked and cell["outputs"]:
            assert cell["metadata"]["jupyter"]["outputs_hidden"], source(cell)[:60]
            # JupyterLab shows the first line of folded text beside its source.
            text = any(o["output_type"] == "stream" for o in cell["outputs"])
            assert folded(cell) or not text, source(cell)[:60]
        elif kind == "predict, then run" and "check(" in source(cell):
            asked = True


@every_chapter
def test_the_exercises_are_asked_with_kind_difficulty_and_hint(path):
    """`**3.6 · Title** · predict, then run · difficulty 2 of 5 · 5 minutes.`"""
    chapter = path.stem.split("_")[0].removeprefix("0")
    known = {k: e for k, e in exercises().items() if k.split(".")[0] == chapter}
    calls = re.findall(r'check\(\s*"([\db.]+)"', "".join(map(source, code(path))))
    assert sorted(calls) == list(known)
    asked, kinds = {}, set()
    for cell in load(path):
        named = re.match(r"\*\*(\d+b?\.\d+) · ", source(cell))
        if cell["cell_type"] == "markdown" and named:
            asked[named[1]] = source(cell)
    assert set(asked) >= set(known)
    for key, text in asked.items():
        head = HEAD.match(text)
        assert head and head["difficulty"] in "12345", text
        kinds.add(head["kind"])
        assert (key in known) == (head["kind"] != OPEN), key
        if key in known:
            assert int(head["minutes"]) == known[key].minutes, key
        assert text.count("<summary>Hint</summary>") >= (key in known), key
        assert (head["kind"] == OPEN) == ("<summary>Rubric</summary>" in text), key
    assert kinds <= set(KINDS) and len(kinds) >= 3
