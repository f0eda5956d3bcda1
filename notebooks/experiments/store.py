"""Stored runs: their configurations, formulas and machines, and a row per rollout.

    NAME.runs.csv      one line per run: its key, configuration, provenance
    NAME.rows.csv.gz   one line per rollout, the run's key first

A run is named by a hash of its configuration, the salt, the weights it begins from and
the numbers that its method gives (`behaviour`). So code may be moved and rewritten, and
a changed formula only outdates the runs of its own method. One process at a time adds a
run as a whole: first its rows, as one gzip member, then its line. If a process is
killed meanwhile, the incomplete part is cut off, and a copy of the files is kept. Files
that are damaged in any other way are refused and left as they are.
"""

import csv
import datetime
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import transformers
from filelock import FileLock, Timeout

import refimpl
from experiments.files import check_writable, replace_file, to_disk
from refimpl import seeds
from refimpl.config import TrainConfig
from refimpl.validation import UserError

if TYPE_CHECKING:
    import pandas

DEFAULTS = asdict(TrainConfig())
MEASURING = ("samples_every", "checkpoint_every")
"""Settings without any influence on the numbers of a run."""
HEAD = (
    "run behaviour weights spec salt commit refimpl python torch transformers "
    "processor instructions threads date seconds ended old_code"
).split()
"""`weights`: SHA-256 of the weights that the run began from. It is empty for the first
runs from warm starts outside the package, which did not record it.
`old_code`: the hash of the losses' source that was part of the first names of runs."""
FIRST_NAMES = {"token_truncate": "max_rollout_weight"}
"""Settings that were renamed, with the name that stays in the keys of stored runs."""
CHUNK = 2**14


def key(spec: Mapping) -> str:
    """A run's name: 16 hex digits of `run_spec(spec)`, salt, `spec["behaviour"]`."""
    return _name(run_spec(spec), seeds.salt(), spec.get("behaviour", ""))


def run_spec(spec: Mapping) -> dict:
    """The part of a configuration that names a run: no defaults, and no `MEASURING`.

    So stored runs keep their names if a setting is added whose default changes nothing,
    or if one is removed that was at its default. (A changed default would change their
    meaning, so a test pins the defaults.)
    """
    rules = {**spec, **spec.get("corrections", {})}  # corrections count as settings
    named = renamed(rules, FIRST_NAMES)
    if "changed" in named:
        named["changed"] = renamed(named["changed"], FIRST_NAMES)
    return {
        name: value
        for name, value in named.items()
        if name not in (*MEASURING, "behaviour", "corrections")
        and (name not in DEFAULTS or value != DEFAULTS[name])
    }


def renamed(settings: Mapping, names: Mapping[str, str]) -> dict:
    """The settings under their other names, with tuples for lists."""
    return {
        names.get(name, name): tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }


def _name(configuration: Mapping, salt: int, behaviour: str) -> str:
    named = json.dumps([configuration, salt, behaviour], sort_keys=True)
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def provenance() -> dict[str, str]:
    """The machine, the versions and the date of a run that is made now."""
    return {
        "salt": str(seeds.salt()),
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
    """The commit of the clone, with a + if the code here was changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", ".", "../../refimpl"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return ""
    return head.stdout.strip() + "+" * bool(changed.stdout.strip())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(n.split(": ", 1)[1] for n in lines if n.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


class Files(NamedTuple):
    """The content of both files of a store, and what a killed process left in them."""

    lines: list[dict[str, str]]
    rows: list[str]
    """lines of CSV, the names of the columns first"""
    half_a_member: bool
    alone: int
    """rows at the end whose run has no line"""


class Store:
    """The runs in `NAME.runs.csv` and `NAME.rows.csv.gz`, open for one process.

    Raises `UserError` if a file cannot be written, is damaged, or is of another kind,
    and while another process has them open.
    """

    def __init__(self, path: str | Path, columns: Iterable[str]):
        self.path, self.columns = Path(path), ["run", *columns]
        self.runs_path, self.rows_path = paths(path)
        check_writable(self.runs_path, "the runs")
        check_writable(self.rows_path, "the rows")
        self.lock = FileLock(f"{path}.lock")
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"another process adds runs to {str(path)!r}; wait for it, or name "
                "another store"
            ) from None
        try:
            files = opened(path)
            self._check_columns(files.rows)
            self.dropped = self._mend(files)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the store, so that another process may add to it."""
        self.lock.release()

    def add(self, spec: Mapping, rows: list[Mapping], about: Mapping[str, str]) -> None:
        """Store a whole run. An unknown value of a row (None) is left empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self.rows_path.exists():
            writer.writerow(self.columns)
        run = key(spec)
        for row in rows:
            writer.writerow([run, *(_short(row.get(c)) for c in self.columns[1:])])
        with open(self.rows_path, "ab") as file:
            file.write(gzip.compress(text.getvalue().encode(), mtime=0))
            to_disk(file)
        new = not self.runs_path.exists()
        with open(self.runs_path, "a", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, HEAD, lineterminator="\n")
            if new:
                lines.writeheader()
            named = {"run": run, "behaviour": spec.get("behaviour", "")}
            named["spec"] = json.dumps(run_spec(spec), sort_keys=True)
            lines.writerow({"salt": seeds.salt(), **about, **named})
            to_disk(file)

    def _check_columns(self, rows: list[str]) -> None:
        """Raise `UserError` if the stored rows have other columns."""
        there = rows[0].strip().split(",") if rows else self.columns
        if there != self.columns:
            apart = sorted(set(there) ^ set(self.columns))
            raise UserError(
                f"{self.rows_path} holds rows with other columns (these differ: "
                f"{', '.join(apart) or 'their order'}); choose another file"
            )

    def _mend(self, files: Files) -> list[str]:
        """Cut off an incomplete run, and keep a copy. Returns what was cut off."""
        dropped = []
        if self.runs_path.exists():
            text = self.runs_path.read_bytes()
            if not text.endswith(b"\n"):
                dropped.append(f"{self.runs_path.name}: a line cut off in the middle")
                _replace(self.runs_path, text[: text.rfind(b"\n") + 1])
        if files.half_a_member:
            dropped.append(f"{self.rows_path.name}: rows cut off in the middle")
        elif files.alone:
            dropped.append(f"{self.rows_path.name}: rows of a run that has no line")
        if self.rows_path.exists() and (dropped or not files.rows):
            kept = "".join(files.rows[: len(files.rows) - files.alone])
            _replace(self.rows_path, gzip.compress(kept.encode(), mtime=0) * bool(kept))
        return dropped


def paths(path: str | Path) -> tuple[Path, Path]:
    """The files NAME.runs.csv and NAME.rows.csv.gz of a store."""
    folder, name = Path(path).parent, os.path.basename(path)
    if name in ("", ".", ".."):
        raise UserError(f"a store needs a name, got {str(path)!r}; as runs/mine")
    return folder / f"{name}.runs.csv", folder / f"{name}.rows.csv.gz"


def done(path: str | Path) -> set[str]:
    """The keys of the runs that are stored with all their rows.

    Changes nothing, since another process may be writing. Raises `UserError` if a file
    is damaged or of another kind.
    """
    return {line["run"] for line in opened(path).lines}


def opened(path: str | Path) -> Files:
    """Read both files and compare them. Changes nothing.

    A process that is killed leaves half a line, half a gzip member, or the rows of the
    last run without its line. Raises `UserError` on any other mismatch.
    """
    runs_path, rows_path = paths(path)
    lines = _lines(runs_path)
    rows, half_a_member = _unpacked(rows_path)
    runs = Counter(row.partition(",")[0] for row in rows[1:])
    named = {line["run"] for line in lines}
    without = [run for run in runs if run not in named]
    if without and without != list(runs)[-1:]:
        raise _damaged(runs_path, f"it lacks {len(without)} runs that have rows")
    if lacking := len(named - set(runs)):
        raise _damaged(
            rows_path, f"it lacks the rows of {lacking} of {len(named)} runs"
        )
    if len(set(rows)) < len(rows):
        raise _damaged(rows_path, "rows are there twice")
    alone = sum(runs[run] for run in without)
    return Files(lines, rows, half_a_member, alone)


def _lines(path: Path) -> list[dict[str, str]]:
    """The complete lines of a runs file, each checked against its key."""
    text = path.read_bytes() if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    try:
        reader = csv.DictReader(io.StringIO(whole.decode(), newline=""))
        head, lines = reader.fieldnames, list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path, f"it is no table ({error})") from None
    if whole and head != HEAD:
        raise UserError(
            f"{path} was not written by this version's runs: its columns are {head}, "
            f"expected {HEAD}; choose another file"
        )
    wrong = [n for n, line in enumerate(lines, 2) if not _fits(line)]
    if wrong:
        raise _damaged(path, f"line {wrong[0]} does not fit its key")
    if len({line["run"] for line in lines}) < len(lines):
        raise _damaged(path, "runs are there twice")
    return lines


def _fits(line: dict) -> bool:
    try:
        name = _name(json.loads(line["spec"]), int(line["salt"]), line["behaviour"])
    except (ValueError, TypeError):  # no JSON, no number, or no value
        return False
    fields = None not in line and None not in line.values()
    return fields and name == line["run"] and "\0" not in "".join(line.values())


def _unpacked(path: Path) -> tuple[list[str], bool]:
    """The lines in the complete gzip members of a file, and whether one is cut off."""
    packed = memoryview(path.read_bytes() if path.exists() else b"")
    text, begin = [], 0
    while begin < len(packed):
        member, part, end = zlib.decompressobj(wbits=31), [], begin
        try:
            while not member.eof and end < len(packed):
                part.append(member.decompress(packed[end : end + CHUNK]))
                end = min(end + CHUNK, len(packed))
        except zlib.error:
            raise _damaged(path, f"from byte {begin} on it is not gzip") from None
        if not member.eof:
            break
        text += part
        begin = end - len(member.unused_data)
    lines = b"".join(text).decode(errors="replace").splitlines(keepends=True)
    if lines and not lines[0].startswith("run,"):
        raise _damaged(path, "it holds no rows of runs")
    return lines, begin < len(packed)


def _damaged(path: Path, what: str) -> UserError:
    return UserError(
        f"{path} is damaged: {what}; put both files of this store back from a copy "
        f"(in a clone: git checkout {path.parent}), or name another store"
    )


def read(path: str | Path) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The runs and the rows of a store, as pandas data frames.

    A run's configuration becomes columns, including defaults of `TrainConfig`. A run
    that is incomplete, because a process was killed or is still writing, is left out
    with a warning. Raises `UserError` if nothing is stored, or if a file is damaged.
    """
    import pandas

    runs_path, rows_path = paths(path)
    files = opened(path)
    if not files.lines:
        is_what = "holds no run" if runs_path.exists() else "is missing"
        raise UserError(
            f"no runs are stored at {str(path)!r}: {runs_path} {is_what}; make them, "
            "or name another store"
        )
    if files.alone or files.half_a_member:
        warnings.warn(
            f"{rows_path.name} holds {files.alone} rows of a run that is not whole: "
            "it is being stored just now, or was cut off; they are left out",
            stacklevel=2,
        )
    words = dict.fromkeys(("run", "behaviour", "weights", "commit", "old_code"), str)
    whole = pandas.DataFrame(files.lines).to_csv(index=False)
    runs = pandas.read_csv(io.StringIO(whole), dtype=words)
    usual = {name: x for name, x in DEFAULTS.items() if name not in MEASURING}
    specs = [usual | json.loads(text) for text in runs.pop("spec")]
    now = {first: name for name, first in FIRST_NAMES.items()}
    for one in specs:
        if "changed" in one:
            one["changed"] = renamed(one["changed"], now)
    spec = pandas.DataFrame(specs)
    kept = "".join(files.rows[: len(files.rows) - files.alone])
    rows = pandas.read_csv(io.StringIO(kept), dtype={"run": str})
    return runs.join(spec), rows


def _replace(path: Path, text: bytes) -> None:
    """Write `text` in place of the old content, which is kept as `NAME.before`.

    If nothing is left, the file is removed, since a new file begins with its header.
    """
    shutil.copy2(path, f"{path}.before")
    if text:
        replace_file(path, text)
    else:
        path.unlink()


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
