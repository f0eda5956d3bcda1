"""How fast pictures follow their sliders: `python -m tests.sliders [CHAPTER …]`.

For every control of every explorer, the median of 20 moves, from the value to the
image, in milliseconds. The bar is 100 on two idle cores. Only the cells that the
explorers need are executed.
"""

import contextlib
import importlib
import io
import itertools
import os
import statistics
import symtable
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
if str(NOTEBOOKS) not in sys.path:
    sys.path.insert(0, str(NOTEBOOKS))

from course.explorer import Explorer, reach  # noqa: E402

MOVES = 20


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
    door = importlib.import_module(f"course.chapter{path.stem.split('_')[0]}")
    chosen = sorted({j for i in shown(cells) for j in needed(cells, i)})
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, REFIMPL_FIGURES=folder),
        mock.patch.object(door, "display", display, create=True),
        contextlib.chdir(path.parent),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        for i in chosen:
            exec(compile(cells[i], f"{path.name}, code cell {i}", "exec"), space)
    plays = [one for one in displayed if isinstance(one, Explorer)]
    return {f"explorer {i}": play for i, play in enumerate(plays, 1)}


def sweep(control) -> list:
    """Values across the control's range, none twice."""
    ends = reach(control)
    if hasattr(control, "options"):
        return ends[:: max(1, len(ends) // MOVES)]
    low, high = ends
    values = (low + (high - low) * i / (MOVES - 1) for i in range(MOVES))
    return list(dict.fromkeys(type(control.value)(x) for x in values))


def milliseconds(play: Explorer, name: str) -> float:
    """Median over the moves of one control; sets it back."""
    control, usual = play.controls[name], play.values[name]
    taken = []
    for value in itertools.cycle(sweep(control)):
        if value == control.value:
            continue  # no move
        start = time.perf_counter()
        control.value = value
        taken.append(1000 * (time.perf_counter() - start))
        if len(taken) == MOVES:
            break
    control.value = usual
    return statistics.median(taken)


def main(chapters: list[str]) -> None:
    worst = 0.0
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if chapters and path.stem.split("_")[0] not in chapters:
            continue
        for name, play in explorers(path).items():
            times = {control: milliseconds(play, control) for control in play.controls}
            worst = max(worst, *times.values())
            each = ", ".join(f"{control} {ms:.0f}" for control, ms in times.items())
            print(f"{path.stem:>18}  {name:<14}  {each}", flush=True)
    print(f"slowest: {worst:.0f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
