"""Notebooks that run anywhere: a first cell fetches the course if it is missing.

    python -m web --repository OWNER/NAME

writes such copies to `run/` and links each chapter to its own, for Colab or a download.
Colab opens notebooks of a branch; `.github/workflows/pages.yml` puts them on `colab`.
"""

import json
import os
import re

from web.page import ROOT

BRANCH = "colab"

FETCH = """\
# Fetch the course and install what is missing here. In a clone this does nothing.
import importlib.metadata, os, pathlib, subprocess, sys

if not pathlib.Path("course").is_dir():
    clone = pathlib.Path("the-course").resolve()
    if not clone.is_dir():
        asked = ["git", "clone", "-q", "--depth", "1", "--branch", "{version}"]
        subprocess.run([*asked, "{repository}", str(clone)], check=True)
    here = {{d.metadata["Name"].lower() for d in importlib.metadata.distributions()}}
    lines = (clone / "requirements.txt").read_text().splitlines()
    pins = [line.split()[0] for line in lines if "==" in line]
    lacking = [pin for pin in pins if pin.split("==")[0] not in here | {{"jupyterlab"}}]
    if lacking:
        pip = [sys.executable, "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *lacking], check=True)
    os.chdir(clone / "notebooks")
    sys.path[:0] = [str(clone / "notebooks"), str(clone)]
"""


def known(repository: str) -> str:
    """Return the address of OWNER/NAME; an address is returned as it is."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        host = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        return f"{host}/{repository}"
    return repository.rstrip("/")


def copy(name: str, repository: str) -> bytes:
    """Return the notebook, with a first cell that fetches the course."""
    notebook = json.loads((ROOT / "notebooks" / name).read_text(encoding="utf-8"))
    version = os.environ.get("GITHUB_REF_NAME") or "main"
    source = FETCH.format(repository=repository, version=version)
    first = {
        "cell_type": "code",
        "execution_count": None,
        "id": "fetch",
        "metadata": {},
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }
    notebook["cells"].insert(0, first)
    text = json.dumps(notebook, ensure_ascii=False, indent=1)
    pictures = f"{repository}/raw/{version}/notebooks/figures/"
    return text.replace('src=\\"figures/', f'src=\\"{pictures}').encode()


def ways(name: str, repository: str) -> list[tuple[str, str]]:
    """Return the ways to open a chapter, each with its address."""
    opened = [("Open this notebook", f"{repository}/blob/main/notebooks/{name}")]
    if at := re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", repository):
        colab = f"https://colab.research.google.com/github/{at[1]}/blob/{BRANCH}/{name}"
        opened += [("Open in Colab", colab)]
        opened += [("Codespaces", f"https://codespaces.new/{at[1]}")]
    return [*opened, ("Download", f"run/{name}")]
