"""Explorers of a chapter without the rest of it, and JupyterLab in a browser."""

import contextlib
import io
import os
import socket
import subprocess
import symtable
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
if str(NOTEBOOKS) not in sys.path:
    sys.path.insert(0, str(NOTEBOOKS))

from course.kit.explorer import Explorer  # noqa: E402
from web.browser import (  # noqa: E402
    Watched,
    wait,
)


def scopes(table):
    yield table
    for child in table.get_children():
        yield from scopes(child)


def makes(code: str) -> set[str]:
    """The global names that a cell assigns, imports or defines."""
    symbols = symtable.symtable(code, "cell", "exec").get_symbols()
    return {
        s.get_name()
        for s in symbols
        if s.is_assigned() or s.is_imported() or s.is_namespace()
    }


def uses(code: str) -> set[str]:
    """The global names that a cell, or a function in it, reads and does not make."""
    top, *inner = scopes(symtable.symtable(code, "cell", "exec"))
    read = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    for scope in inner:
        read |= {s.get_name() for s in scope.get_symbols() if s.is_global()}
    return read - makes(code)


def needed(cells: list[str], at: int) -> list[int]:
    """The cells that cell `at` depends on, directly or not, and itself."""
    todo, chosen = [at], set()
    while todo:
        here = todo.pop()
        chosen.add(here)
        for name in uses(cells[here]):
            makers = [j for j in range(here) if name in makes(cells[j])]
            todo += [j for j in makers[-1:] if j not in chosen]
    return sorted(chosen)


def code(path: Path) -> list[str]:
    """The code cells; a live warm start is replaced by the shipped one."""
    return [
        cell.source.replace("fresh=True", "fresh=False")
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code" and cell.source.strip()
    ]


SLOW = ("train(", "warm_start(", "collect(")


def cost(cells: list[str], chosen: list[int]) -> tuple[int, int]:
    """How many slow things these cells do, and how many cells there are."""
    return sum(word in cells[i] for i in chosen for word in SLOW), len(chosen)


def shown(cells: list[str]) -> list[int]:
    """The cells that display an explorer: they make it, or call what makes it."""
    cells_shown = [i for i, c in enumerate(cells) if "display(" in c and "xplorer" in c]
    assert cells_shown, "no cell displays an explorer"
    return cells_shown


def explorers(path: Path) -> dict[str, Explorer]:
    """The explorers that a chapter displays, in their order."""
    cells, displayed = code(path), []

    def display(*every) -> None:
        displayed.extend(every)

    space = {"__name__": "__main__", "display": display}
    chosen = sorted({j for i in shown(cells) for j in needed(cells, i)})
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, REFIMPL_FIGURES=folder),
        contextlib.chdir(path.parent),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        for i in chosen:
            exec(compile(cells[i], f"{path.name}, code cell {i}", "exec"), space)
    plays = [one for one in displayed if isinstance(one, Explorer)]
    return {f"explorer {i}": play for i, play in enumerate(plays, 1)}


@contextlib.contextmanager
def lab(cells: list[str]) -> Iterator[tuple[str, Path]]:
    """JupyterLab beside a notebook `sliders.ipynb` with these cells: address, log."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        nbformat.write(notebook, Path(root, "sliders.ipynb"))
        options = (
            "--no-browser --allow-root --ServerApp.ip=127.0.0.1 "
            "--IdentityProvider.token= --ServerApp.password= "
            "--LabApp.expose_app_in_browser=True"
        ).split()
        options += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={root}"]
        paths = [str(NOTEBOOKS), str(NOTEBOOKS.parent)]  # `course` and `refimpl`
        folders = {"PYTHONPATH": os.pathsep.join(paths)}
        log = Path(root, "server.log")
        with log.open("w") as words:
            server = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *options],
                env=os.environ | folders | {"REFIMPL_FIGURES": f"{root}/figures"},
                stdout=words,
                stderr=subprocess.STDOUT,
            )
        address = f"http://127.0.0.1:{port}"
        try:
            wait(lambda: urllib.request.urlopen(f"{address}/api").status == 200)
            yield address, log
        finally:
            server.terminate()
            server.wait(timeout=30)


OPEN = "jupyterapp.commands.execute('docmanager:open', {path: 'sliders.ipynb'})"
READY = "return !!window.jupyterapp?.shell.currentWidget?.sessionContext?.session"


def opened(browser, address: str, log: Path, patience: float = 30) -> Watched:
    """The browser with the notebook of `lab` open, and its kernel there.

    Where the address alone has opened nothing for a while, JupyterLab's own command
    does: on one machine the page stayed empty.
    """
    seen = Watched(browser, log)
    browser.get(f"{address}/lab/tree/sliders.ipynb?reset")
    seen(lambda: browser.execute_script("return !!window.jupyterapp"), "JupyterLab")
    end = time.monotonic() + patience
    while time.monotonic() < end and not browser.execute_script(READY):
        time.sleep(0.3)
    if not browser.execute_script(READY):
        browser.execute_script(OPEN)
    seen(lambda: browser.execute_script(READY), "a kernel")
    return seen


RUN = """
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = arguments[0];
    notebook.deselectAll();
    jupyterapp.commands.execute('notebook:run-cell');
"""  # its promise is not returned: the driver would wait for the cell to end
