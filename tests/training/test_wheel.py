"""The package as `pip install` leaves it, used from a folder of the reader's own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

CHILD = """
import importlib, json, pkgutil
import refimpl

for module in pkgutil.walk_packages(refimpl.__path__, "refimpl."):
    if not module.name.startswith("refimpl.interop."):  # these need TRL and verl
        importlib.import_module(module.name)

from refimpl import TrainConfig, evaluate, train
from refimpl.lab import grid, store
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import rare_careful

config = TrainConfig(rollouts=2, prompts_per_rollout=4, group_size=4, eval_problems=8)
history = train("sapo", config=config, progress=False)
history.to_csv("history.csv")
starts = [WarmStart(), WarmStart(preset="tiny-moe"), WarmStart(world=rare_careful())]
shipped = [start.shipped() is not None and len(warm_start(start)) for start in starts]

grid.BASE = config
job = grid.Cell("SAPO 8.8"), 0, 0
store.Store("stored", grid.COLUMNS).add(grid.spec(*job), *grid.run(*job))
print(json.dumps({
    "file": refimpl.__file__,
    "rollouts": len(history),
    "accuracy": history.accuracy,
    "shipped": shipped,
    "stored": len(store.read("stored")[1]),
}))
"""


def run(*words, **settings) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, **settings
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel installs and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "refimpl", source / "refimpl", ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    alone = ("--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "wheel", *alone, "--wheel-dir", folder / "dist", source)
    (wheel,) = (folder / "dist").glob("refimpl-*.whl")
    run(*pip, "install", "--no-deps", "--no-index", "--target", site, wheel)
    return site


@pytest.fixture
def use(installed, tmp_path):
    """Runs Python in another folder, with the installed package alone on its path."""
    cache = tmp_path / "cache"
    environment = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "REFIMPL_CACHE": str(cache),
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    return lambda *words: run(*words, cwd=elsewhere, env=environment), elsewhere


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)) for p in found if "__pycache__" not in p.parts}


def test_the_wheel_holds_the_package_and_nothing_beside_it(installed):
    own = {path.name for path in installed.iterdir()}
    assert own - {"bin"} == {"refimpl", *(n for n in own if n.startswith("refimpl-"))}
    sources = {n for n in files(ROOT / "refimpl") if not n.endswith(".csv")}
    assert sources <= files(installed / "refimpl")


def test_it_trains_from_any_folder_and_writes_only_there(installed, use):
    python, elsewhere = use
    before = files(installed)
    found = json.loads(python("-c", CHILD).splitlines()[-1])
    assert Path(found["file"]).is_relative_to(installed)
    assert found["rollouts"] == 2 and 0 <= found["accuracy"] <= 1
    assert found["shipped"] == [3, 3, 3]
    assert found["stored"] == 2
    assert files(installed) == before
    assert files(elsewhere) == {"history.csv", "stored.runs.csv", "stored.rows.csv.gz"}


def test_its_command_line_works_from_any_folder(use):
    python, elsewhere = use
    words = "train --algorithm sapo --rollouts 2 --set prompts_per_rollout=4 --set"
    more = "eval_problems=8 --history h.csv --save policy --checkpoint-dir c"
    last = python("-m", "refimpl", *words.split(), *more.split()).splitlines()[-1]
    assert "rollouts 2" in last and "accuracy 0." in last
    assert {"h.csv", "policy", "c"} == {path.name for path in elsewhere.iterdir()}
