"""A chapter's copy for Colab, run where there is nothing but an installation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from web import anywhere

ROOT = Path(__file__).resolve().parents[2]
TELL = "import course, refimpl; print(refimpl.__file__)"


@pytest.mark.ci
def test_a_copy_fetches_the_course_and_computes_with_it(tmp_path, monkeypatch):
    asked = ["git", "rev-parse", "--abbrev-ref", "HEAD"]
    branch = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout
    if branch.strip() in ("", "HEAD"):
        pytest.skip("not a checkout: git does not list its files")
    monkeypatch.setenv("GITHUB_REF_NAME", branch.strip())
    made = json.loads(anywhere.copy("03_grpo.ipynb", ROOT.as_uri()))
    fetch = "".join(made["cells"][0]["source"])
    bare = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", f"{fetch}\n{TELL}"]
    for _ in range(2):  # the second finds it there
        done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode().strip().startswith(str(tmp_path / "the-course"))


def test_a_chapter_is_opened_in_colab_in_codespaces_or_from_a_download():
    there = anywhere.known("someone/course")
    ways = dict(anywhere.ways("03_grpo.ipynb", there))
    assert ways["Codespaces"] == "https://codespaces.new/someone/course"
    assert ways["Open in Colab"].endswith("someone/course/blob/colab/03_grpo.ipynb")
    elsewhere = anywhere.ways("03_grpo.ipynb", anywhere.known("https://host.org/x/y/"))
    assert [way for way, _ in elsewhere] == ["Open this notebook", "Download"]
