"""Execute notebooks in place: `python -m tests.execute [CHAPTER …]`, e.g. `02 05`.

Outputs and figures are committed as this writes them: cells in order from a fresh
kernel, no time stamps, of a widget its picture alone, no progress bars, cells
numbered anew. The explorers' tables are written to `figures/explorers/`.
"""

import json
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
TABLES = NOTEBOOKS.parent / "figures" / "explorers"
"""What the explorers' pages show without a kernel."""
WIDGET = "application/vnd.jupyter.widget-view+json"
"""A widget that no kernel holds any more; its picture stays."""
METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i:02}"
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        resources={"metadata": {"path": path.parent}},
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if not is_progress_bar(o)]
            for output in cell.outputs:
                data = output.get("data", {})
                data.pop(WIDGET, None)
    notebook.metadata = nbformat.from_dict(METADATA)
    text = nbformat.writes(notebook, version=4)
    path.write_text(
        json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def is_progress_bar(output) -> bool:
    """A saved bar would stand at 0 % for ever."""
    return "%|" in output.get("data", {}).get("text/plain", "")


def main(chapters: list[str]) -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not chapters or path.stem.split("_")[0] in chapters:
            start = time.perf_counter()
            for old in TABLES.glob(f"{path.stem}_*.json"):
                old.unlink()
            os.environ["REFIMPL_TABLES"] = str(TABLES / path.stem)  # of the kernel, too
            execute(path)
            print(f"{path.name}  {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
