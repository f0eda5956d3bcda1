"""Execute notebooks in place: `python -m tests.tools.execute [CHAPTER …]`, as `02 05`.

With `--explorers` only the cells are run that a chapter's explorers need, and only the
explorers' pictures and tables are written: a minute for what has changed its looks.

Outputs and figures are committed as this writes them: cells in order from a fresh
kernel, no time stamps, of a widget its picture alone, no progress bars, cells
numbered anew, metadata as JupyterLab writes it. What a cell tagged `hide-output` shows
answers the question above it and goes into its metadata. The explorers' tables are
written to `figures/explorers/`; those of a chapter whose names begin with its number
and that it no longer shows are removed.
"""

import json
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.tools import sliders
from tests.tools.pages import ANSWER, HIDDEN

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
TABLES = NOTEBOOKS.parent / "figures" / "explorers"
"""What explorers show without a kernel."""
WIDGET = "application/vnd.jupyter.widget-view+json"
"""A widget that no kernel holds any more; its picture stays."""
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": "3.11.7",
    },
}
"""As the pinned JupyterLab saves it; only the version is the reader's own."""


def run(notebook, folder: Path) -> None:
    """Execute the cells; what they display as explorers is kept as tables."""

    async def keep(**_) -> None:
        code = f"from web import tables; tables.keep({str(TABLES)!r})"
        done = await client.kc.execute(code, silent=True, reply=True)
        assert done["content"]["status"] == "ok", done["content"]

    client = NotebookClient(
        notebook,
        timeout=1800,  # an explorer's tables take five minutes of a quiet core
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        resources={"metadata": {"path": folder}},
        on_notebook_start=keep,
    )
    client.execute()


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i:02}"
    run(notebook, path.parent)
    save(notebook, path)


def explorers(path: Path) -> None:
    """Run what the explorers need; the outputs of all other cells stay."""
    notebook = nbformat.read(path, as_version=4)
    cells = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
    sources = sliders.code(path)
    shown, chosen = sliders.shown(sources)
    few = nbformat.v4.new_notebook(metadata=METADATA)
    few.cells = [nbformat.v4.new_code_cell(sources[i]) for i in chosen]
    run(few, path.parent)
    for i, made in zip(chosen, few.cells):
        if i in shown:
            cells[i].outputs = made.outputs
            cells[i].execution_count = i + 1  # also of a cell that is new
    save(notebook, path)


def save(notebook, path: Path) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for output in [*cell.outputs]:
                data = output.get("data", {})
                data.pop(WIDGET, None)
                if "%|" in data.get("text/plain", ""):  # a bar, at 0 % for ever
                    cell.outputs.remove(output)
            if cell.outputs and HIDDEN in cell.metadata.get("tags", ()):
                cell.metadata[ANSWER], cell.outputs = cell.outputs, []
    notebook.metadata = nbformat.from_dict(METADATA)
    text = nbformat.writes(notebook, version=4)
    keys = {"indent": 1, "ensure_ascii": False, "sort_keys": True}
    path.write_text(json.dumps(json.loads(text), **keys) + "\n", encoding="utf-8")


def main(words: list[str]) -> None:
    os.environ.setdefault("REFIMPL_FIGURES", str(NOTEBOOKS.parent / "figures"))
    os.environ.pop("JPY_SESSION_NAME", None)  # nobody's progress is read or kept
    chapters = [word for word in words if word != "--explorers"]
    make = explorers if "--explorers" in words else execute
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        number = path.stem.split("_")[0]
        if not chapters or number in chapters:
            start = time.time()
            make(path)
            for table in TABLES.glob(f"{number}_*.json"):
                if table.stat().st_mtime < start:  # of an explorer that is gone
                    table.unlink()
            print(f"{path.name}  {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
