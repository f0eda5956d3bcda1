"""Stored runs: their configurations, formulas and machines, and a row per rollout.

    NAME.runs.csv.xz   one line per run: its key, configuration, provenance
    NAME.rows.csv.xz   one line per rollout, the run's key first
    NAME.sqlite        the runs that a process is adding, until it has ended

A run is named by a hash of its configuration, the salt, the weights it begins from and
the numbers that its method gives (`behaviour`). So code may be moved and rewritten, and
a changed formula only outdates the runs of its own method. One process at a time adds
runs, each as a whole. At its end it exports all of them to the two files for git. If it
is killed, its runs wait in the database for the next process. `pandas.read_csv` reads
both files.
"""

import csv
import datetime
import hashlib
import io
import itertools
import json
import lzma
import os
import platform
import sqlite3
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pandas
import torch
import transformers
from filelock import FileLock, Timeout

import refimpl
from refimpl import seeds
from refimpl.config import TrainConfig
from refimpl.files import check_output, write
from refimpl.validation import UserError

DATA = Path(__file__).parents[2] / "figures" / "data"
"""The folder of the stored results, wherever a command is called from."""
DEFAULTS = asdict(TrainConfig())
HEAD = (
    "run behaviour weights spec salt commit refimpl python torch transformers "
    "processor instructions threads date seconds ended old_code"
).split()
"""`weights`: SHA-256 of the weights that the run began from. It is empty for the first
runs from warm starts outside the package, which did not record it.
`old_code`: the hash of the losses' source that was part of the first names of runs."""
FIRST_NAMES = {"token_truncate": "max_rollout_weight"}
"""Settings that were renamed, with the name that stays in the keys of stored runs."""
TABLE = "CREATE TABLE IF NOT EXISTS runs (run PRIMARY KEY, line)"
EXACT = ("reward", "completions/mean_length", "length/wrong", "drift/step")
"""Stored with six digits: rewards, lengths, which differ by little, and the steps that
other runs follow."""
ENDS = (".runs.csv.xz", ".rows.csv.xz", ".sqlite")
Line = dict[str, str]
"""The fields of `HEAD`, and `rows`: the run's rows as CSV, with their heading."""


def key(spec: Mapping) -> str:
    """Name a run by 16 hex digits of `run_spec(spec)`, salt and `spec["behaviour"]`."""
    return _name(run_spec(spec), seeds.salt(), spec.get("behaviour", ""))


def run_spec(spec: Mapping) -> dict:
    """Return the part of a configuration that names a run: no defaults.

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
        if name not in ("behaviour", "corrections")
        and (name not in DEFAULTS or value != DEFAULTS[name])
    }


def renamed(settings: Mapping, names: Mapping[str, str]) -> dict:
    """Return the settings under their other names, with tuples for lists."""
    return {
        names.get(name, name): tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }


def _name(configuration: Mapping, salt: int, behaviour: str) -> str:
    named = json.dumps([configuration, salt, behaviour], sort_keys=True)
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def provenance() -> dict[str, str]:
    """Return the machine, the versions and the date for a run that is made now."""
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
    """Return the commit of the clone, with a + if the code was changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    asked = "rev-parse --short=12 HEAD", "status --porcelain . ../../refimpl"
    try:
        head, changed = (
            subprocess.run([*git, *words.split()], capture_output=True, text=True)
            for words in asked
        )
    except OSError:
        return ""
    return head.stdout.strip() + "+" * bool(changed.stdout.strip())


def _processor() -> str:
    if torch.cuda.is_initialized():  # the run was made there
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(n.split(": ", 1)[1] for n in lines if n.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


class Store:
    """The runs of NAME, open for one process that adds some.

    Raises `UserError` if a file cannot be written or is damaged, if the stored rows
    have other columns, and while another process has it open.
    """

    def __init__(self, path: str | Path, columns: Iterable[str]):
        self.path, self.columns = Path(path), ["run", *columns]
        *files, self.database = paths(path)
        for file in files:
            check_output(file)
        for line in stored(path).values():
            there = next(csv.reader(line["rows"].splitlines()))
            if there != self.columns:
                apart = sorted(set(there) ^ set(self.columns)) or ["their order"]
                raise UserError(
                    f"{str(path)!r} holds rows with other columns (these differ: "
                    f"{', '.join(apart)}); name another store"
                )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(f"{path}.lock")
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"another process is adding runs to {str(path)!r}; wait for it, or "
                "name another store"
            ) from None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def add(self, spec: Mapping, rows: list[Mapping], about: Mapping[str, str]) -> None:
        """Store a whole run. An unknown value of a row (None) is left empty."""
        run, text = key(spec), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in rows:
            writer.writerow([run, *(short(c, row.get(c)) for c in self.columns[1:])])
        line = {"salt": str(seeds.salt()), **about, "rows": text.getvalue()}
        line |= {"run": run, "behaviour": spec.get("behaviour", "")}
        line["spec"] = json.dumps(run_spec(spec), sort_keys=True)
        with closing(sqlite3.connect(self.database)) as opened, opened:
            opened.execute(TABLE)
            opened.execute("INSERT INTO runs VALUES (?, ?)", [run, json.dumps(line)])

    def close(self) -> None:
        """Export all runs, and let another process add to them."""
        if self.database.exists():
            export(self.path, stored(self.path).values())
            self.database.unlink()
        self.lock.release()


def paths(path: str | Path) -> list[Path]:
    """Return the two files of a store, and its database."""
    folder, name = Path(path).parent, os.path.basename(path)
    if name in ("", ".", ".."):
        raise UserError(f"a store needs a name, such as runs/mine, got {str(path)!r}")
    return [folder / f"{name}{end}" for end in ENDS]


def export(path: str | Path, lines: Iterable[Line]) -> None:
    """Write the files for git: the same bytes for the same runs."""
    runs_path, rows_path, _ = paths(path)
    text = io.StringIO()
    writer = csv.DictWriter(text, HEAD, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    # rows first: if the process is killed between, the database still has their runs
    for file, table in ((rows_path, all_rows(lines)), (runs_path, text.getvalue())):
        packed = lzma.compress(table.encode())
        write(file, lambda opened, packed=packed: opened.write(packed), "wb")


def all_rows(lines: Iterable[Line]) -> str:
    """Join the rows of these runs to one table."""
    heads, rows = zip(*(line["rows"].split("\n", 1) for line in lines))
    return f"{heads[0]}\n{''.join(rows)}"


def stored(path: str | Path) -> dict[str, Line]:
    """Return all runs by their keys: those in the files, then those being added.

    Raises `UserError` if a file is damaged or of another kind.
    """
    *files, database = paths(path)
    found, adding = {}, database.exists()
    if files[0].exists() or (files[1].exists() and not adding):
        try:
            found = _exported(*files, adding)
        except Exception as e:  # as many kinds as there are kinds of damage
            raise UserError(
                f"the files of the store {str(path)!r} are damaged ({e}): restore "
                f"both from a copy (in a clone: git checkout {Path(path).parent}), or "
                "name another store"
            ) from None
    if adding and database.stat().st_size:  # else its first run comes now
        with closing(sqlite3.connect(database)) as opened:
            lines = opened.execute("SELECT run, line FROM runs ORDER BY rowid")
            found |= {run: json.loads(line) for run, line in lines}
    return found


def _exported(runs_path: Path, rows_path: Path, adding: bool) -> dict[str, Line]:
    """Read both files. While runs are being added, the rows may be ahead."""
    packed = runs_path.read_bytes(), rows_path.read_bytes()
    runs, text = (lzma.decompress(file).decode() for file in packed)
    head, *rows = text.splitlines(keepends=True)
    by_run = itertools.groupby(rows, lambda row: row.partition(",")[0])
    of_run = {run: head + "".join(own) for run, own in by_run}
    lines = [*csv.DictReader(io.StringIO(runs, newline=""))]
    for n, line in enumerate(lines, 2):
        spec, salt = json.loads(line["spec"]), int(line["salt"])
        if _name(spec, salt, line["behaviour"]) != line["run"]:
            raise ValueError(f"line {n} of {runs_path.name} does not fit its key")
    if [line["run"] for line in lines] != [*of_run][: len(lines) if adding else None]:
        raise ValueError("they hold different runs, or in different orders")
    return {line["run"]: {**line, "rows": of_run[line["run"]]} for line in lines}


def done(path: str | Path) -> set[str]:
    """Return the keys of the stored runs."""
    return set(stored(path))


def read(path: str | Path) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return the runs and the rows of a store, as pandas data frames.

    A run's configuration becomes columns, including defaults of `TrainConfig`. Raises
    `UserError` if nothing is stored, or if a file is damaged.
    """
    lines = [*stored(path).values()]
    if not lines:
        raise UserError(
            f"no runs are stored at {str(path)!r}; make them, or name another store"
        )
    words = dict.fromkeys(("run", "behaviour", "weights", "commit", "old_code"), str)
    whole = pandas.DataFrame(lines, columns=HEAD).to_csv(index=False)
    runs = pandas.read_csv(io.StringIO(whole), dtype=words)
    specs = [DEFAULTS | json.loads(text) for text in runs.pop("spec")]
    now = {first: name for name, first in FIRST_NAMES.items()}
    for one in specs:
        if "changed" in one:
            one["changed"] = renamed(one["changed"], now)
    rows = io.StringIO(all_rows(lines))
    return runs.join(pandas.DataFrame(specs)), pandas.read_csv(rows, dtype={"run": str})


def short(name: str, value: float | None) -> str:
    """Return a value of this column as it is stored."""
    if value is None:
        return ""
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.{6 if name in EXACT else 4}g}"
