"""The package as `pip install` leaves it, used from a folder of the reader's own."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.worlds import own_process

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

BUILD = """
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1])
"""
CHILD = """
import importlib, json, pkgutil, sys
# An editable installation would help out with what the wheel leaves out.
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in str(finder)]
import refimpl
from refimpl.__main__ import main
from refimpl import History

others = ("refimpl.interop.trl", "refimpl.interop.verl")  # these need TRL and verl
for module in pkgutil.walk_packages(refimpl.__path__, "refimpl."):
    if not module.name.startswith(others):
        importlib.import_module(module.name)

words = "train --algorithm sapo --rollouts 2 --prompts-per-rollout 4 --eval-problems"
words += " 8 --history h.csv --save policy --checkpoint-dir c"
worked = main(words.split())
print(json.dumps({
    "file": refimpl.__file__,
    "worked": worked,
    "rollouts": len(History.load("h.csv")),
}))
"""


def run(*words, **settings) -> str:
    done = own_process(*words, **settings)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel installs and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "refimpl", source / "refimpl", ignore=unwanted)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (folder / "dist").mkdir()
    run(BUILD, folder / "dist", cwd=source)
    (wheel,) = (folder / "dist").glob("refimpl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_the_wheel_trains_from_any_folder_and_writes_only_there(installed, tmp_path):
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {
        "PYTHONPATH": str(installed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "REFIMPL_CACHE": str(cache),
    }
    said = run(CHILD, cwd=elsewhere, **environment)
    (told,) = [line for line in said.splitlines() if line.startswith('{"file"')]
    found = json.loads(told)
    assert Path(found.pop("file")).is_relative_to(installed)
    assert found == {"worked": 0, "rollouts": 2}
    assert "rollouts 2" in said and "accuracy 0." in said
    assert not cache.exists()  # the policy came with the package
    assert {"h.csv", "policy", "c"} == {path.name for path in elsewhere.iterdir()}


def test_the_description_of_the_wheel_runs_as_it_stands(installed, tmp_path):
    assert (installed / "refimpl/py.typed").exists()
    (metadata,) = installed.glob("refimpl-*.dist-info/METADATA")
    text = metadata.read_text("utf-8")
    assert "\nAuthor: " in text and "\nKeywords: " in text and "Extra: dev" not in text
    assert not re.search(r"\]\((?!https:)", text)  # an index has no other files
    loss, training = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    environment = {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    nothing_more = "\nimport sys; assert 'transformers' not in sys.modules"
    said = run(loss + nothing_more, cwd=tmp_path, **environment)
    assert "grad_fn" in said and "ratio" in said
    said = run(training, cwd=tmp_path, **environment)
    assert float(said.splitlines()[0]) > 0.8
