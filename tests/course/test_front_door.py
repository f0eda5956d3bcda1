"""A newcomer's first minutes: the README's command, its pictures, a slider that moves.

JupyterLab is started as the README starts it, with the extension that is here, with an
empty home folder and a browser that does nothing; the pages are then opened in one
without a window. `front_door.py open` looks whether the installation brings it along.
Or a chapter's copy for Colab, run where there is nothing but an installation.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.tools import front_door
from tests.tools.browser import MISSING, chromium, wait
from tests.tools.front_door import ROOT, Lab
from web import anywhere

pytestmark = [pytest.mark.slow, pytest.mark.ci]
PANEL = """  // the one in sight: the workspace may have brought back another
    const panels = [...document.querySelectorAll('.jp-NotebookPanel')];
    const notebook = panels.find((one) => one.offsetParent);
    if (!notebook) return null;
"""
LOADED = f"""{PANEL}
    return notebook.querySelector('.jp-RenderedMarkdown img')?.naturalWidth;
"""
FOUND = f"""{PANEL}
    const found = [...notebook.querySelectorAll(arguments[0])].find(one =>
        one.textContent.includes(arguments[1]));
    if (found) {{
        found.scrollIntoView({{block: 'center'}});
        return found;
    }}
    const page = notebook.querySelector('.jp-WindowedPanel-outer');
    const [at, seen] = [page.scrollTop, page.clientHeight];  // and from the top again
    page.scrollTop = at < page.scrollHeight - seen - 2 ? at + 0.8 * seen : 0;
"""
TITLE, CELL = ("h1", "10 · SAPO"), (".jp-Editor .cm-content", "sapo_explorer()")
TAU, HANDLE = ("figure.explorer [type=range]", ""), (".widget-slider .noUi-handle", "")
STILL, IMAGE = (".jp-RenderedImage img", ""), (".jp-RenderedMarkdown img", "")
RIGHT = "\ue014"
SHIFT_ENTER = "\ue008\ue007"
IDLE = f"""{PANEL}
    return notebook.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]');
"""
PICTURE = f"""{PANEL}
    const picture = notebook.querySelector('img.widget-image');
    return picture?.naturalWidth && picture.src;
"""
CURVES = f"""{PANEL}
    const drawn = notebook.querySelectorAll('.explorer-picture defs path');
    return [...drawn].map(one => one.getAttribute('d')).join();
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """In a copy of the notebooks, as JupyterLab saves what is open."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    shutil.copytree(ROOT / "figures", folder / "figures")
    line = front_door.command(front_door.OPEN).splitlines()[-1]
    line = line.replace(".venv/bin/python", sys.executable)
    assert line.startswith(f"{sys.executable} -m jupyterlab")
    given = front_door.nothing_else(str(tmp_path_factory.mktemp("home")))
    extensions = tmp_path_factory.mktemp("jupyter")
    player = ROOT / "notebooks/player"
    shutil.copytree(player, extensions / "labextensions/refimpl-explorers")
    given["JUPYTER_PATH"] = str(extensions)
    with front_door.lab(line, folder, given | {"BROWSER": "true"}, 120) as server:
        yield server


def is_as_committed(text: str, name: str) -> bool:
    """Whether `git pull` meets no change: only the version of Python is one's own."""
    committed = (ROOT / "notebooks" / name).read_text(encoding="utf-8")
    saved, known = json.loads(text), json.loads(committed)["metadata"]
    saved["metadata"]["language_info"]["version"] = known["language_info"]["version"]
    return json.dumps(saved, indent=1, ensure_ascii=False) + "\n" == committed


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_newcomer_gets_from_the_first_page_to_a_slider_that_moves(lab):
    """Chapter 00; chapter 10 with a picture that says what it shows, whose first slider
    moves before a cell has run. What was only read and saved is as before. Then the two
    cells that the chapter asks to run, and a key on the widget's slider.
    """
    home, of_10 = lab.address.rpartition("/")[0], "10_sapo.ipynb"
    path = lab.folder / "notebooks" / of_10
    with chromium(1400, 900) as page:

        def click(asked: tuple[str, str]) -> bool:
            page.execute_script(FOUND, *asked).click()
            return True

        def save() -> None:
            page.find_element("tag name", "body").send_keys("\ue009s")  # Ctrl+S

        def moved(before: str) -> bool:
            page.execute_script(FOUND, *HANDLE).send_keys(RIGHT * 5)
            return (page.execute_script(PICTURE) or before) != before

        page.get(f"{lab.address}?token={lab.token}")
        wait(lambda: page.execute_script(FOUND, "h1", "00 · Start here"), "chapter 00")
        page.get(f"{home}/{of_10}")
        wait(lambda: page.execute_script(FOUND, *IMAGE), "the picture of chapter 10")
        wait(lambda: page.execute_script(LOADED), "its file")
        slider = wait(lambda: page.execute_script(FOUND, *TAU), "a slider")
        before = page.execute_script(CURVES)
        slider.send_keys(RIGHT * 2)
        wait(lambda: page.execute_script(CURVES) != before, "another curve")
        assert slider.accessible_name == "τpos, for Â > 0"
        assert slider.get_attribute("aria-valuetext") == "2.5"
        wait(lambda: page.execute_script(IDLE), "a kernel")
        picture = wait(lambda: page.execute_script(FOUND, *STILL), "a picture")
        assert len(picture.get_attribute("alt")) > 30
        before = path.stat().st_mtime_ns
        wait(lambda: save() or path.stat().st_mtime_ns > before, "a save")
        wait(lambda: is_as_committed(path.read_text("utf-8"), of_10), "all of it")
        wait(lambda: click(TITLE), "its title")
        for _ in range(2):  # the title's cell, and the first one with code
            page.switch_to.active_element.send_keys(SHIFT_ENTER)
        wait(lambda: click(CELL), "the explorer's cell")
        page.switch_to.active_element.send_keys(SHIFT_ENTER)
        before = wait(lambda: page.execute_script(PICTURE), "an explorer's picture")
        wait(lambda: moved(before), "another picture")
        handle = page.execute_script(FOUND, *HANDLE)
        assert handle.accessible_name == "τ_pos, for Â > 0"
        widget = page.execute_script(FOUND, "img.widget-image", "")
        assert widget.get_attribute("alt").startswith("Panels: ")


TELL = "import course, refimpl; print(refimpl.__file__)"


def test_a_copy_fetches_the_course_and_computes_with_it(tmp_path, monkeypatch):
    asked = ["git", "rev-parse", "--abbrev-ref", "HEAD"]
    branch = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout
    if branch.strip() in ("", "HEAD"):
        pytest.skip("not a checkout: git does not list its files")
    monkeypatch.setenv("GITHUB_REF_NAME", branch.strip())
    made = json.loads(anywhere.copy("03_grpo.ipynb", ROOT.as_uri()))
    fetch = "".join(made["cells"][0]["source"])
    bare = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", f"{fetch}\n{TELL}"]
    for _ in range(2):  # the second finds it there
        done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode().strip().startswith(str(tmp_path / "the-course"))
