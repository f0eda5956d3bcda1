"""The package as `pip install` leaves it, used from a folder of the reader's own."""

import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.worlds import own_process

ROOT = Path(__file__).parents[2]
NOTHING_WRITTEN = {"PYTHONDONTWRITEBYTECODE": "1"}
pytestmark = [pytest.mark.slow, pytest.mark.ci]

BUILD = """
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1])
"""
IMPORTED = """
import importlib, pkgutil, sys
# An editable installation would help out with what the wheel leaves out.
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in str(finder)]
import refimpl

others = ("refimpl.interop.trl", "refimpl.interop.verl")  # these need TRL and verl
for module in pkgutil.walk_packages(refimpl.__path__, "refimpl."):
    if not module.name.startswith(others):
        importlib.import_module(module.name)
print(refimpl.__file__)
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


def test_every_module_is_in_the_wheel(installed, tmp_path):
    found = run(IMPORTED, cwd=tmp_path, PYTHONPATH=str(installed), **NOTHING_WRITTEN)
    assert str(installed / "refimpl/__init__.py") in found.splitlines()


def test_the_description_of_the_wheel_runs_as_it_stands(installed, tmp_path):
    """From any folder, and nothing is written: the policy came with the package."""
    assert (installed / "refimpl/py.typed").exists()
    (metadata,) = installed.glob("refimpl-*.dist-info/METADATA")
    text = metadata.read_text("utf-8")
    assert "\nAuthor: " in text and "\nKeywords: " in text and "Extra: dev" not in text
    assert not re.search(r"\]\((?!https:)", text)  # an index has no other files
    loss, training = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    environment = {"PYTHONPATH": str(installed), "REFIMPL_CACHE": str(tmp_path / "c")}
    environment |= NOTHING_WRITTEN
    nothing_more = "\nimport sys; assert 'transformers' not in sys.modules"
    said = run(loss + nothing_more, cwd=tmp_path, **environment)
    assert "grad_fn" in said and "ratio" in said
    said = run(training, cwd=tmp_path, **environment)
    assert float(said.splitlines()[0]) > 0.8
    assert not [*tmp_path.iterdir()]
