"""`python -m experiments`, as a reader would type it."""

import re
import shlex
from functools import wraps
from pathlib import Path

import pytest

from experiments import bench, command, evidence

ROOT = Path(__file__).parents[2]


def run(line: str) -> int:
    """The exit code, also where the parser of the command line ends the process."""
    try:
        return command.main(shlex.split(line))
    except SystemExit as ending:
        return ending.code


def test_the_stored_evidence_is_found_from_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evidence, "check", lambda out: [str(out)])
    assert run("evidence check") == 1
    found = Path(capsys.readouterr().out.strip())
    assert found == ROOT / "figures" / "data" / "evidence"


def test_every_command_that_is_written_down_is_understood(monkeypatch):
    """The text of guide, README, CONTRIBUTING and chapters; their work is not done."""
    done = {n: wraps(f)(lambda *_, **__: 0) for n, f in command.COMMANDS.items()}
    monkeypatch.setattr(command, "COMMANDS", done)
    pages = [*ROOT.glob("*.md"), *ROOT.glob("notebooks/guide/*.md")]
    pages += ROOT.glob("notebooks/*.ipynb")
    for old in ("CHANGELOG.md", "notebooks/guide/renamed.md"):  # former names
        pages.remove(ROOT / old)
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    asked = re.findall(r"python -m experiments ([^`\n#>|&,]+)", text)
    known = {*"bench evidence gpu-check long".split()}
    assert {line.split()[0] for line in asked} == known
    for line in asked:
        assert run(line) == 0, line


LINES = {
    "evidense": "Available subcommands: bench, real, long, evidence, gpu-check",
    "bench --algorithms": "--algorithms names none",
    "bench --out empty": "cannot write a file to 'empty'",
    "real --arms": "no arm or no setting is named",
    "evidence run --out file/e": "cannot write a file to 'file/e.",
    "evidence ledger --claims 1": "about all claims",
    "gpu-check --device cpu --out new/b.json": "give --tiny too",
}


@pytest.mark.parametrize("line", LINES)
def test_a_mistake_is_one_sentence_before_any_work(line, tmp_path, monkeypatch, capsys):
    def work(*_, **__):
        raise AssertionError("work was done")

    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    Path("empty").mkdir()
    monkeypatch.setattr(bench, "warm_start", work)
    monkeypatch.setattr(evidence.RUNS, "run", work)
    assert run(line) == 2
    printed = capsys.readouterr()
    assert LINES[line] in " ".join(printed.err.replace("│", " ").split())
    assert not printed.out and "Traceback" not in printed.err
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "empty"}
