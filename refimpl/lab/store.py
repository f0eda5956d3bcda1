"""Stored runs: what was run, by which code, where, and what came of every rollout.

    NAME.runs.csv      one line per run: its key, configuration, provenance
    NAME.rows.csv.gz   one line per rollout, the run's key first

A run is named by a hash of its configuration and of the code of the losses, so a
changed loss never mixes with what is stored. A run is added whole: first its rows, as
one gzip member, then its line; whatever a killed process left of one is dropped.
"""

import ast
import csv
import datetime
import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import tokenize
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers

import refimpl
from refimpl import dice
from refimpl.config import TrainConfig
from refimpl.files import writable_file

if TYPE_CHECKING:
    import pandas

PACKAGE = Path(refimpl.__file__).parent
LOSSES = ("algorithms", "normalisers.py", "advantages.py", "kl.py", "importance.py")
"""What makes a loss; a run under another one is another run."""
DEFAULTS = asdict(TrainConfig())
HEAD = (
    "run code spec salt commit refimpl python torch transformers processor "
    "instructions threads date seconds ended"
).split()


def key(spec: Mapping) -> str:
    """A run's name: 16 hex digits of its configuration, the salt and the losses.

    Settings of `TrainConfig` at their default are not part of it: a setting that is
    added later, and changes nothing by default, leaves stored runs what they are. (To
    change a default is to change what they mean; a test pins them.)
    """
    own = {n: v for n, v in spec.items() if n not in DEFAULTS or v != DEFAULTS[n]}
    named = json.dumps([own, dice.salt(), code()], sort_keys=True)
    return hashlib.sha256(named.encode()).hexdigest()[:16]


@cache
def code() -> str:
    """A hash of the losses' code, without comments and docstrings."""
    digest = hashlib.sha256()
    for part in LOSSES:
        path = PACKAGE / part
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.name}\n{bare(file.read_text('utf-8'))}".encode())
    return digest.hexdigest()[:16]


def bare(source: str) -> str:
    """`source` without comments, docstrings and empty lines."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    kept = [line.rstrip() for n, line in enumerate(lines, 1) if n not in skipped]
    return "\n".join(line for line in kept if line)


def provenance() -> dict[str, str]:
    """Where and with what a run is made."""
    return {
        "code": code(),
        "salt": str(dice.salt()),
        "commit": _commit(),
        "refimpl": refimpl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "date": datetime.date.today().isoformat(),
    }


def _commit() -> str:
    """The checkout's commit, with a + if files of the package were changed since."""
    git = ["git", "-C", str(PACKAGE)]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "."], capture_output=True, text=True
        )
    except OSError:
        return ""
    return found.stdout.strip() + "+" * bool(changed.stdout.strip())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(n.split(": ", 1)[1] for n in lines if n.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


class Store:
    """The runs in `NAME.runs.csv` and `NAME.rows.csv.gz`.

    Raises `ValueError` if one of them cannot be written, or is of another kind.
    """

    def __init__(self, path: str | Path, columns: Iterable[str]):
        self.columns = ["run", *columns]
        folder, name = Path(path).parent, Path(path).name
        self.runs_path = writable_file(runs_file(path), "the runs")
        self.rows_path = writable_file(folder / f"{name}.rows.csv.gz", "the rows")
        self.dropped = self._mend()
        self._check_columns()

    def done(self) -> set[str]:
        """The keys of the runs that are stored whole."""
        return done(self.runs_path)

    def add(self, spec: Mapping, rows: list[Mapping], about: Mapping[str, str]) -> None:
        """Store a run whole; what is not known of a row (None) is left empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self.rows_path.exists():
            writer.writerow(self.columns)
        own = key(spec)
        for row in rows:
            writer.writerow([own, *(_short(row.get(c)) for c in self.columns[1:])])
        with open(self.rows_path, "ab") as file:
            file.write(gzip.compress(text.getvalue().encode(), mtime=0))
            _to_disk(file)
        new = not self.runs_path.exists()
        with open(self.runs_path, "a", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, HEAD, lineterminator="\n")
            if new:
                lines.writeheader()
            said = {"run": own, "spec": json.dumps(spec, sort_keys=True), **about}
            lines.writerow(said)
            _to_disk(file)

    def _check_columns(self) -> None:
        """Rows of other columns are not mixed with these."""
        if not self.rows_path.exists():
            return
        with gzip.open(self.rows_path, "rt", encoding="utf-8") as file:
            there = file.readline().strip().split(",")
        if there != self.columns:
            apart = sorted(set(there) ^ set(self.columns))
            raise ValueError(
                f"{self.rows_path} holds rows with other columns (these differ: "
                f"{', '.join(apart) or 'their order'}); choose another file"
            )

    def _mend(self) -> list[str]:
        """Cut off what a killed process left; say what was dropped."""
        said = []
        if self.runs_path.exists():
            text = self.runs_path.read_bytes()
            if not text.endswith(b"\n"):
                whole = text[: text.rfind(b"\n") + 1]
                said.append(f"{self.runs_path.name}: a line cut off in the middle")
                _replace(self.runs_path, whole)
        if self.rows_path.exists():
            text = self.rows_path.read_bytes()
            whole = text[: _whole_members(text)]
            lines = gzip.decompress(whole).decode().splitlines(keepends=True)
            done = self.done() | {"run"}  # the first line, too
            kept = "".join(line for line in lines if line.partition(",")[0] in done)
            if len(whole) < len(text):
                said.append(f"{self.rows_path.name}: rows cut off in the middle")
            elif len(kept) < sum(map(len, lines)):
                said.append(f"{self.rows_path.name}: rows of a run that has no line")
            if said or not kept:
                packed = gzip.compress(kept.encode(), mtime=0) if kept else b""
                _replace(self.rows_path, packed)
        return said


def done(runs_path: Path) -> set[str]:
    """The keys of the runs in this file. Only looks: another process may be writing.

    Raises `ValueError` if the file is of another kind.
    """
    if not runs_path.exists():
        return set()
    reader = csv.DictReader(_whole_lines(runs_path))
    if reader.fieldnames != HEAD:
        raise ValueError(
            f"{runs_path} was not written by this version's runs: its columns are "
            f"{reader.fieldnames}; choose another file"
        )
    return {line["run"] for line in reader}


def _whole_lines(path: Path) -> list[str]:
    with open(path, newline="", encoding="utf-8") as file:
        return [line for line in file if line.endswith("\n")]


def runs_file(path: str | Path) -> Path:
    """NAME.runs.csv, of the NAME that `path` gives."""
    return Path(path).parent / f"{Path(path).name}.runs.csv"


def read(path: str | Path) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The runs and the rows that `path` names, as pandas data frames.

    A run's configuration becomes columns. A line that is cut off, and rows of a run
    without a line (a process was killed between the two), are left out, with a
    warning. Raises `ValueError` if nothing is stored.
    """
    import pandas

    folder, name = Path(path).parent, Path(path).name
    files = [runs_file(path), folder / f"{name}.rows.csv.gz"]
    if not all(file.exists() for file in files):
        raise ValueError(f"no runs are stored at {str(path)!r}: {files[0]} is missing")
    text = io.StringIO("".join(_whole_lines(files[0])))
    runs = pandas.read_csv(text, dtype={"run": str, "code": str, "commit": str})
    spec = pandas.DataFrame([json.loads(text) for text in runs.pop("spec")])
    packed = files[1].read_bytes()
    whole = gzip.decompress(packed[: _whole_members(packed)])
    rows = pandas.read_csv(io.BytesIO(whole), dtype={"run": str})
    known = rows["run"].isin(runs["run"])
    if not known.all():
        warnings.warn(
            f"{files[1].name} holds {(~known).sum()} rows of a run that is not whole: "
            "it is being stored just now, or was cut off; they are left out",
            stacklevel=2,
        )
    rows = rows[known]
    return runs.join(spec), rows.reset_index(drop=True)


def _whole_members(text: bytes) -> int:
    """How many bytes of `text` are whole gzip members."""
    whole = 0
    while whole < len(text):
        member = zlib.decompressobj(wbits=31)
        try:
            member.decompress(text[whole:])
        except zlib.error:
            break
        if not member.eof:
            break
        whole = len(text) - len(member.unused_data)
    return whole


def _replace(path: Path, text: bytes) -> None:
    """`text` in place of what is there; no file, if nothing is left of it, not even
    the first line (which a new file begins with)."""
    if not text:
        path.unlink()
        return
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(text)
    os.replace(scratch, path)


def _to_disk(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
