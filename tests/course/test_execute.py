"""What `python -m tests.tools.execute` writes is what is committed."""

import json
import os

import nbformat
import pytest

from tests.tools.execute import NOTEBOOKS, execute


@pytest.fixture(autouse=True)
def _kernels_find_the_course(monkeypatch):
    paths = [str(NOTEBOOKS), str(NOTEBOOKS.parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def test_outputs_are_written_in_order_without_traces_of_the_machine(tmp_path):
    """Of a widget nothing is left that only a kernel could show."""
    widget = "import ipywidgets\nipywidgets.IntSlider()"
    bar = "from tqdm.auto import tqdm\nfor i in tqdm([1]):\n    print('once')"
    cells = [
        nbformat.v4.new_code_cell(widget, id="odd", execution_count=7),
        nbformat.v4.new_markdown_cell("π", id="b"),
        nbformat.v4.new_code_cell(bar, metadata={"tags": ["kept"]}),
    ]
    path = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    execute(path, tmp_path / "tables")
    text = path.read_text(encoding="utf-8")
    made = json.loads(text)
    assert text.endswith("\n}\n") and "π" in text
    assert made["metadata"].keys() == {"kernelspec", "language_info"}
    assert [cell["id"] for cell in made["cells"]] == ["cell-00", "cell-01", "cell-02"]
    first, _, last = made["cells"]
    assert (first["execution_count"], last["execution_count"]) == (1, 2)
    assert first["metadata"] == {} and last["metadata"] == {"tags": ["kept"]}
    (seen,) = first["outputs"]
    assert seen["data"].keys() == {"text/plain"}
    shown = [o for o in last["outputs"] if o.get("name") != "stderr"]
    assert [o["text"] for o in shown] == [["once\n"]]
    execute(path, tmp_path / "tables")
    assert path.read_text(encoding="utf-8") == text
