"""The runs of all claims and studies, and the ledger of verdicts that they give.

The first runs are in the store NAME (see `store`), and those of claims that were run
later in NAME.CLAIM. The ledger is NAME.ledger.csv.
"""

import csv
import io
import itertools
import math
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from experiments import store
from experiments.arms import ARMS, check_known
from experiments.claims import CLAIMS, SECOND, STUDIES
from experiments.effects import Breaking, Claim, Contrast, Effect, Study, Sum
from experiments.experiment import Job
from experiments.finding import LATER, STAGES
from experiments.grid import RUNS, Cell, begins, formula, nested
from experiments.outcomes import CELL, outcomes
from experiments.statistics import Estimate, benjamini_hochberg, estimate, holms
from refimpl import seeds
from refimpl.files import write
from refimpl.sft import warm_start
from refimpl.validation import Count, Seed, UserError, guarded

Wanted = tuple[Cell, int, int]
"""A cell, a start and a seed."""
EVERY = (*CLAIMS, *SECOND)
NAMES: dict[str, Claim | Study] = {str(c.number): c for c in EVERY}
NAMES |= STUDIES | STAGES | LATER
if len(NAMES) < len(EVERY) + len(STUDIES) + len(STAGES) + len(LATER):
    raise UserError("two claims or studies share a number or name: give a new one")
SECONDS = {1: 9.0, 4: 11.0, 16: 32.0}
"""Seconds of a run on one core by K, used while no run is stored."""
AA = {"world": "moe", "rate": 6e-4, "updates": 16}
"""The cells in which one algorithm was run under two names (see `control`)."""
LEDGER = "claim title effect low high unit starts runs detectable p holm bh".split()
LEDGER += ["verdict", "why"]


# The stores


def parts(out: str | Path) -> list[Path]:
    """Return the stores of `out`: its own, and one per claim that was run later."""
    base = Path(out)
    files = base.parent.glob(f"{base.name}.*")
    found = ((file, end) for file in files for end in store.ENDS)
    return sorted(
        {f.with_name(f.name[: -len(end)]) for f, end in found if f.name.endswith(end)}
    )


def done(out: str | Path) -> set[str]:
    """Return the keys of all stored runs."""
    return set().union(*map(store.done, parts(out)))


def read(out: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs and rows of all parts together. Raises as `store.read` does."""
    found = [store.read(part) for part in parts(out) or [Path(out)]]
    runs, rows = zip(*found)
    return pd.concat(runs, ignore_index=True), pd.concat(rows, ignore_index=True)


@guarded
def table(out: str | Path) -> pd.DataFrame:
    """Return one line per stored run with its outcomes; see `outcomes`.

    Runs of formulas that have changed are named in a warning and left out. Raises
    `UserError` if no run remains.
    """
    runs, rows = read(out)
    old = outdated(runs)
    left_out = (
        f"{old.sum()} of {len(runs)} runs were made by a formula that has changed: "
        f"{_by_arm(runs[old])}; `python -m experiments evidence run` makes them again"
    )
    if old.all():
        raise UserError(left_out)
    if old.any():
        warnings.warn(f"{left_out}, and they are left out", stacklevel=3)
    return outcomes(runs[~old], rows[rows["run"].isin(runs.loc[~old, "run"])])


def outdated(runs: pd.DataFrame) -> pd.Series:
    """Mark the runs whose arm has a different formula today (another `behaviour`)."""
    cells = zip(runs["arm"], runs["changed"], runs["behaviour"])
    now = [
        formula(arm, tuple(changed.items())) if arm in ARMS else stored
        for arm, changed, stored in cells
    ]
    return runs["behaviour"] != now


def _by_arm(runs: pd.DataFrame) -> str:
    return ", ".join(
        f"{arm} ({n} runs)" for arm, n in runs["arm"].value_counts().items()
    )


# plan and run


def wanted(names: Collection[str]) -> list[Wanted]:
    """Return every run that the named claims and studies need, once.

    The order is seed by seed, then warm start by warm start, so that after an early
    stop there are a few runs of every cell, not all runs of the first cells. Raises
    `UserError` on unknown names.
    """
    check_known("claim", names, NAMES)
    most: dict[tuple[int, Cell], int] = {}  # number of seeds, over all claims
    for name in names:
        asked = NAMES[name]
        for at in itertools.product(asked.starts, asked.cells):
            most[at] = max(most.get(at, 0), asked.seeds)
    return [
        (cell, start, nested(start, j))
        for j in range(max(most.values(), default=0))
        for start in sorted({start for start, _ in most})
        for (own, cell), n in most.items()
        if own == start and j < n
    ]


def keys(names: Collection[str]) -> set[str]:
    """Return the keys of the runs that these claims and studies need."""
    return {RUNS.key(cell.job(*at)) for cell, *at in wanted(names)}


def missing(done: Collection[str], names: Collection[str]) -> list[Wanted]:
    """Return the wanted runs whose keys are not in `done`."""
    every = wanted(names)
    return [(cell, *at) for cell, *at in every if RUNS.key(cell.job(*at)) not in done]


@guarded
def plan(
    out: str | Path, claims: Collection[str] = tuple(NAMES), workers: Count = 1
) -> str:
    """Format a table of missing runs by claim, and the hours that the workers need.

    If nothing is stored, all runs are missing.
    """
    lines, every, seconds, again, made = [], set(), SECONDS, "", done(out)
    if made:
        runs, _ = read(out)
        seconds = SECONDS | runs.groupby("updates")["seconds"].median().to_dict()
        if (old := outdated(runs)).any():
            again = f"\nmade by a formula that has changed: {_by_arm(runs[old])}"

    def hours(jobs: Collection[Wanted]) -> float:
        return sum(seconds[cell.updates] for cell, _, _ in jobs) / 3600

    for name in claims:
        left, asked = missing(made, [name]), wanted([name])
        every.update(left)
        lines.append([name, NAMES[name].title, len(asked), len(left), hours(left)])
    head = ["", "claim or study", "runs", "missing", "core-hours"]
    return (
        f"{tabulate(lines, head, floatfmt='.1f')}\n\n{len(every)} runs are missing "
        f"(some serve several claims): about {hours(every) / workers:.1f} hours with "
        f"{workers} worker{'s' * (workers > 1)}{again}"
    )


@guarded
def run_all(
    out: str | Path, claims: Collection[str] = tuple(NAMES), workers: Count = 1
) -> None:
    """Make the runs that are missing. A stored run is never made again.

    Each claim has its own store, OUT.CLAIM, so that a commit adds only little. Raises
    `UserError` on a start that is not part of the clone.
    """
    wanted(claims)  # refuses unknown names before there is a file
    store.paths(out)  # and names that are folders
    for name in claims:
        part = f"{out}.{name}"
        jobs = missing(done(out), [name])
        if jobs or store.paths(part)[-1].exists():  # of a process that was killed
            RUNS.fill(part, paced(out, jobs), workers)


def paced(out: str | Path, jobs: list[Wanted]) -> list[Job]:
    """Make jobs of these runs, each with the steps that it follows (see `followed`)."""
    made = [cell.job(start, seed) for cell, start, seed in jobs]
    if any(ARMS[job["arm"]].pace for job in made):
        stored = read(out)
        made = [job | {"pace": followed(*stored, job)} for job in made]
    return made


def followed(runs: pd.DataFrame, rows: pd.DataFrame, job: Job) -> list[float]:
    """Return ‖Δθ‖ per rollout of the run that this one keeps pace with, [] without one.

    Raises `UserError` if that run is not stored.
    """
    if not (leader := ARMS[job["arm"]].pace):
        return []
    named = RUNS.key(job | {"arm": leader})
    if named not in set(runs["run"]):
        raise UserError(
            f"{job['arm']} follows {leader}'s run from start {job['start']} at "
            f"{job['rate']:g}, which is not stored: make the runs that keep their own "
            "pace first"
        )
    return rows.loc[rows["run"] == named, "drift/step"].tolist()


# repeat


@guarded
def repeat(out: str | Path, run_key: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of a stored run, and those of the same run made here and now.

    The columns are those that the stored run measured, with the digits of the store.
    They are equal on the processor and with the versions that the run's line names.
    Warns if the weights that it began from were not recorded. Raises `UserError` if
    there is no such run, or if it was made with another salt, formula or configuration,
    or from other weights.
    """
    runs, rows = read(out)
    if run_key not in set(runs["run"]):
        raise UserError(f"no run {run_key!r} is stored at {str(out)!r}")
    line = runs.set_index("run").loc[run_key]
    job = line[[*CELL, "start", "seed"]].to_dict()
    if RUNS.key(job) != run_key:
        raise UserError(
            f"the run {run_key!r} was made with salt {line['salt']} and formula "
            f"{line['behaviour']}; now they are {seeds.salt()} and "
            f"{RUNS.behaviour(job)}, or its weights or configuration are others: it "
            "cannot be repeated"
        )
    warm_start(RUNS.warm(job))  # trains the start if it is not there yet
    here = RUNS.weights(job)
    if pd.isna(line["weights"]):
        warnings.warn(
            f"the weights from which the run {run_key!r} began were not recorded: its "
            "warm start is trained again, which differs between processors",
            stacklevel=3,
        )
    elif line["weights"] != here:
        raise UserError(
            f"the run {run_key!r} began from the weights {line['weights'][:12]}…, and "
            f"here its warm start has {here[:12]}…: it cannot be repeated"
        )
    stored = rows[rows["run"] == run_key].drop(columns="run")
    stored = stored.dropna(axis=1, how="all").reset_index(drop=True)
    made, _ = RUNS.run(job | {"pace": followed(runs, rows, job)})
    again = pd.DataFrame(made).reindex(columns=stored.columns).astype(float)
    for name, x in again.items():
        again[name] = [float(store.short(name, value)) for value in x]
    return stored, again


@guarded
def repeat_some(
    out: str | Path, claims: Collection[str] = (), count: Count = 10, seed: Seed = 0
) -> str:
    """Make `count` stored runs again. Returns a table of how far they are apart.

    The runs are drawn at random from those of `claims` (of all, if none is named) that
    begin from weights in this clone. Raises `UserError` if there is no such run. A row
    of the table has the number of rollouts before the first different reward, the
    largest gap, and the mean of the last ten rewards of both.
    """
    runs, _ = read(out)
    runs = runs[~outdated(runs)]
    if claims:
        runs = runs[runs["run"].isin(keys(claims))]
    known = [begins(x.world, x.start) == x.weights for x in runs.itertuples()]
    if not any(known):
        of = f" of {', '.join(claims)}" if claims else ""
        raise UserError(f"no run{of} at {str(out)!r} begins from weights of this clone")
    lines, drawn = [], runs[known].sample(min(count, sum(known)), random_state=seed)
    for line in drawn.itertuples():
        stored, again = (rows["reward"] for rows in repeat(out, line.run))
        apart = (stored - again).abs()
        same = int((apart > 0).argmax()) if apart.any() else len(apart)
        where = f"{line.arm}, {line.world}, K = {line.updates}, {line.rate:g}"
        ends = [rewards.tail(10).mean() for rewards in (stored, again)]
        equal = f"{same} of {len(apart)}"
        lines.append([line.run[:6], where, equal, apart.max(), *ends, expected(line)])
    head = "run what equal apart stored here expected".split()
    return tabulate(lines, head, floatfmt=("", "", "", ".1e", ".4f", ".4f", ""))


def expected(line: Any) -> str:
    """Say how closely this machine can repeat such a run."""
    here = store.provenance()
    kept = ("processor", "instructions", "torch", "threads")
    if all(str(getattr(line, name)) == here[name] for name in kept):
        return "equal in every digit"
    if line.updates * line.rate < 3e-3:
        return "ends within 0.05: other kernels round differently"
    return "begins equal, but may diverge: at this rate rounding grows"


# ledger and check


def control(runs: pd.DataFrame) -> dict[str, Estimate]:
    """Estimate R3 against R2 by outcome, where sampler and trainer are the same.

    There R3 and R2 are one method, so any difference is noise. In the same world, at
    the same rate and K, an effect has to exceed it.
    """
    arms = [Cell(f"GRPO + {replay}", 6e-4, 16, "moe") for replay in ("R3", "R2")]
    compared = {}
    for claim in CLAIMS:
        effect = claim.effect
        if isinstance(effect, Contrast) and effect.outcome != "sampling_kl":
            again = effect._replace(arm=arms[0], control=arms[1])
            pairs = again.pairs(runs)
            if pairs:
                compared[_measured(effect)] = estimate(pairs)
    return compared


def size_of_noise(claim: Claim, noise: dict[str, Estimate]) -> float:
    """Return the far end of the A/A control's interval, or 0 if it does not apply.

    It applies to claims of the control's world, rate and K.
    """
    made = noise.get(_measured(claim.effect))
    here = all(
        {name: getattr(cell, name) for name in AA} == AA for cell in claim.effect.cells
    )
    return max(abs(made.low), abs(made.high)) if here and made and made.known else 0.0


def _measured(effect: Effect) -> str:
    """Return the key of an effect in `control`: its outcome and scale."""
    if isinstance(effect, Contrast):
        return f"{effect.outcome}, {effect.scale}"
    return "reward, difference" if isinstance(effect, Sum | Breaking) else ""


@guarded
def ledger(out: str | Path) -> list[dict[str, Any]]:
    """Compute one line per claim, then their second outcomes, then the control.

    A line has the effect, its interval, and p of no effect, also corrected for all
    claims by Holm and by Benjamini and Hochberg.
    """
    runs = table(out)
    noise = control(runs)
    lines = []
    for claim in EVERY:
        line = {"claim": claim.number, "title": claim.title, "unit": claim.unit}
        line |= {"verdict": "no runs yet", "why": ""}
        if claim.effect.pairs(claim.own(runs)):
            _, made, verdict, why = claim.judge(runs, size_of_noise(claim, noise))
            line |= made._asdict() | {"verdict": verdict, "why": why}
        lines.append(line)
    tested = [line for line in lines[: len(CLAIMS)] if known(line.get("p"))]
    p = [line["p"] for line in tested]
    for line, holm, bh in zip(tested, holms(p), benjamini_hochberg(p)):
        line |= {"holm": holm, "bh": bh}
    for outcome, made in noise.items():
        differs = made.known and not made.low <= 0 <= made.high
        verdict = "noise called a difference" if differs else "as it should be"
        line = {"claim": "A/A", "title": f"R3 against R2: {outcome}", "unit": ""}
        verdict = verdict if made.known else "too few runs"
        lines.append(line | made._asdict() | {"verdict": verdict, "why": ""})
    return [{name: known(line.get(name)) for name in LEDGER} for line in lines]


def known(value: Any) -> Any:
    """Return the value, or None for NaN."""
    return None if value != value else value


def to_csv(lines: list[dict[str, Any]]) -> str:
    """Format the ledger as CSV, numbers with four digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, LEDGER, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        short = {n: f"{x:.4g}" for n, x in line.items() if isinstance(x, float)}
        writer.writerow(line | short)
    return text.getvalue()


def shown(lines: list[dict[str, Any]]) -> str:
    """Format the ledger as a readable table. The last line counts the claims."""
    head = [name for name in LEDGER if name not in ("p", "holm", "bh")]
    rows = [[line[name] for name in head] for line in lines]
    claims = sum(isinstance(line["claim"], int) for line in lines)
    table = tabulate(rows, head, floatfmt=".3g", missingval="–")
    return f"{table}\n{claims} claims"


@guarded
def write_ledger(out: str | Path) -> str:
    """Compute the ledger and store it next to the runs. Returns a readable table."""
    lines = ledger(out)
    write(_ledger_path(out), to_csv(lines))
    return shown(lines)


@guarded
def check(out: str | Path) -> list[str]:
    """Return one sentence per difference of the stored ledger from what the rows give.

    Numbers may differ by a thousandth, since other processors add in another order.
    Raises `UserError` if there is no ledger.
    """
    path = _ledger_path(out)
    if not path.exists():
        raise UserError(
            f"there is no ledger {path}: `python -m experiments evidence ledger` "
            "writes one"
        )
    texts = path.read_text(encoding="utf-8"), to_csv(ledger(out))
    stored, again = ([*csv.DictReader(io.StringIO(text))] for text in texts)
    wrong = []
    if len(stored) != len(again):
        wrong.append(f"{len(stored)} lines are stored, the rows give {len(again)}")
    return wrong + [
        f"{other['claim']} {other['title']}: {name} is stored as {one.get(name)!r}, "
        f"the rows give {other[name]!r}"
        for one, other in zip(stored, again)
        for name in LEDGER
        if not _same(one.get(name), other[name])
    ]


def _same(one: str | None, other: str) -> bool:
    if one == other:
        return True
    try:
        return math.isclose(float(one or ""), float(other), rel_tol=1e-3, abs_tol=1e-6)
    except ValueError:
        return False


def _ledger_path(out: str | Path) -> Path:
    return Path(out).parent / f"{Path(out).name}.ledger.csv"
