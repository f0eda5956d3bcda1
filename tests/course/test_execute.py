"""What `python -m tests.execute` writes is what is committed."""

import io
import json
from base64 import b64decode, b64encode

import nbformat
import numpy as np
from PIL import Image

from tests.execute import execute, in_256_colours


def png(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return b64encode(buffer.getvalue()).decode()


def test_outputs_are_written_in_order_without_traces_of_the_machine(tmp_path):
    """Of a widget the picture is kept: the rest is gone with the kernel."""
    picture = png(Image.new("P", (1, 1)))
    widget = (
        "import ipywidgets\nfrom IPython.display import display\n"
        "class Seen(ipywidgets.HTML):\n"
        "    def _repr_mimebundle_(self, **options):\n"
        f"        return {{'image/png': {picture!r},"
        " **super()._repr_mimebundle_(**options)}\n"
        "display(Seen())"
    )
    bar = "from tqdm.auto import tqdm\nfor i in tqdm([1]):\n    print('once')"
    cells = [
        nbformat.v4.new_code_cell(widget, id="odd", execution_count=7),
        nbformat.v4.new_markdown_cell("π", id="b"),
        nbformat.v4.new_code_cell(bar, metadata={"tags": ["kept"]}),
    ]
    path = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    execute(path)
    text = path.read_text(encoding="utf-8")
    made = json.loads(text)
    assert text.endswith("\n}\n") and "π" in text
    assert made["metadata"].keys() == {"kernelspec", "language_info"}
    assert [cell["id"] for cell in made["cells"]] == ["cell-00", "cell-01", "cell-02"]
    first, _, last = made["cells"]
    assert (first["execution_count"], last["execution_count"]) == (1, 2)
    assert first["metadata"] == {} and last["metadata"] == {"tags": ["kept"]}
    (seen,) = first["outputs"]
    assert seen["data"].keys() == {"image/png", "text/plain"}
    shown = [o for o in last["outputs"] if o.get("name") != "stderr"]
    assert [o["text"] for o in shown] == [["once\n"]]
    execute(path)
    assert path.read_text(encoding="utf-8") == text


def test_a_picture_has_256_colours_and_looks_as_before():
    left_to_right = np.linspace(0, 255, 400).astype(np.uint8)
    pixels = np.full((60, 400, 4), 255, dtype=np.uint8)
    pixels[30:, :, 0] = left_to_right  # 511 colours in all
    pixels[:30, :, 1] = left_to_right
    given = png(Image.fromarray(pixels))
    made = Image.open(io.BytesIO(b64decode(in_256_colours(given))))
    assert made.mode == "P" and made.size == (400, 60)
    off = np.array(made.convert("RGB")).astype(int) - pixels[..., :3]
    assert abs(off).max() <= 8
    few = png(made)
    assert in_256_colours(few) == few, "it is left alone"
