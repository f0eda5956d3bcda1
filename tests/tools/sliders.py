"""Explorers of a chapter without the rest of it."""

import contextlib
import io
import os
import symtable
import sys
import tempfile
from pathlib import Path
from unittest import mock

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
if str(NOTEBOOKS) not in sys.path:
    sys.path.insert(0, str(NOTEBOOKS))

from course.kit.explorer import Explorer  # noqa: E402


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


def shown(cells: list[str]) -> tuple[list[int], list[int]]:
    """The cells that display an explorer, and all that these depend on."""
    found = [i for i, c in enumerate(cells) if "display(" in c and "xplorer" in c]
    assert found, "no cell displays an explorer"
    return found, sorted({j for i in found for j in needed(cells, i)})


def explorers(path: Path) -> dict[str, Explorer]:
    """The explorers that a chapter displays, by their names."""
    cells, displayed = code(path), []

    def display(*every) -> None:
        displayed.extend(every)

    space = {"__name__": "__main__", "display": display}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, REFIMPL_FIGURES=folder),
        contextlib.chdir(path.parent),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        for i in shown(cells)[1]:
            exec(compile(cells[i], f"{path.name}, code cell {i}", "exec"), space)
    plays = [one for one in displayed if isinstance(one, Explorer)]
    return {play.name: play for play in plays}
