"""`python -m refimpl stress`: where methods part, on many stale updates.

K = 16 updates per rollout: 4 mini-batches, 4 passes. Every arm starts from the same
warm start and meets the same problems. One row a rollout, appended as each run ends,
so that an interrupted command goes on where it stopped.
"""

import csv
import itertools
import math
import os
import warnings
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from tqdm.auto import tqdm

from refimpl.arguments import guarded
from refimpl.experiments.arms import ARMS, NEED_MOE, ON_DENSE
from refimpl.files import writable_file
from refimpl.settings import Count
from refimpl.sft import WarmStart, warm_start
from refimpl.trainer import TrainConfig, train

HARD = TrainConfig(
    rollouts=30,
    prompts_per_rollout=32,
    epochs=4,
    learning_rate=6e-4,
    eval_every=10,
    dynamic_sampling=False,
    overlong_share=0.0,
)
SETTINGS = {
    "mild": replace(HARD, learning_rate=2e-4),
    "medium": replace(HARD, learning_rate=4e-4),
    "hard": HARD,
    # The same on a mixture of experts; noise: the sampler's routers are not π_old's.
    "moe-mild": replace(HARD, learning_rate=2e-4),
    "moe-hard": HARD,
    "moe-noise-0.2": replace(HARD, learning_rate=2e-4, router_noise=0.2),
    "moe-noise-0.5": replace(HARD, learning_rate=2e-4, router_noise=0.5),
}
ON_MOE = {name for name in SETTINGS if name.startswith("moe")}
DENSE = tuple(name for name in SETTINGS if name not in ON_MOE)
"""The settings on the dense model."""
COLUMNS = (
    "step reward entropy habit/careful habit_accuracy/careful length/wrong "
    "clip_ratio/region_mean log_ratio/q01 log_ratio/q99 ratio/max_deviation accuracy "
    "router/expert_change router/shift sampling/kl"
).split()
HEAD = ["setting", "arm", "seed", *COLUMNS]


@guarded
def stress(
    out: str | Path,
    arms: Collection[str] = ON_DENSE,
    settings: Collection[str] = DENSE,
    seeds: Count = 5,
    workers: Count = 1,
) -> None:
    """Run every arm × setting × seed that `out` does not hold yet, whole.

    A run that was cut off in the file (the disk was full, the process killed) is
    dropped from it and run again. A run that ends early (it diverges, say) is not
    stored, and a warning at the end names it. Raises `ValueError` on an arm or a
    setting that does not exist, or an arm that needs routers in a setting without.
    """
    _check_names(arms, ARMS)
    _check_names(settings, SETTINGS)
    dense = [name for name in settings if name not in ON_MOE]
    if dense and NEED_MOE.intersection(arms):
        raise ValueError(
            f"{', '.join(sorted(NEED_MOE.intersection(arms)))} need a mixture of "
            f"experts: leave out {', '.join(dense)}"
        )
    out = writable_file(out, "the runs")
    done = _whole_runs(out)
    for setting in settings:
        _start(setting)  # once, before the workers ask for it
    wanted = [
        job
        for job in itertools.product(settings, arms, range(seeds))
        if job not in done
    ]
    early = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        runs = tqdm(pool.map(_run, wanted), total=len(wanted), desc="runs")
        for job, (rows, ended) in zip(wanted, runs, strict=True):
            if ended:
                early.append(f"{', '.join(map(str, job))} {ended}")
            else:
                _append(out, rows)
    if early:
        warnings.warn(f"not stored: {'; '.join(early)}", stacklevel=2)


def _check_names(given: Collection[str], known: dict) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"unknown {name!r}; one of: {', '.join(known)}")


def _whole_runs(out: Path) -> set[tuple[str, str, int]]:
    """The runs in `out` that are complete; what is left of others is removed.

    A new file gets its first line. Raises `ValueError` on a file of another kind.
    """
    if not out.exists() or not out.stat().st_size:
        _append(out, [HEAD])
        return set()
    lines = _lines(out)
    runs: dict[tuple, list[str]] = {}
    for line in lines[1:]:
        row = next(csv.reader([line]))
        if len(row) == len(HEAD) and line.endswith("\n"):
            runs.setdefault((row[0], row[1], row[2]), []).append(line)
    whole = {
        job: own
        for job, own in runs.items()
        if job[0] not in SETTINGS or len(own) == SETTINGS[job[0]].rollouts
    }
    kept = [lines[0], *(line for own in whole.values() for line in own)]
    if len(kept) < len(lines):
        scratch = out.with_name(out.name + ".tmp")
        scratch.write_text("".join(kept), encoding="utf-8")
        os.replace(scratch, out)
    return {(setting, arm, int(seed)) for setting, arm, seed in whole}


def _lines(path: Path) -> list[str]:
    """The lines of a file; `ValueError` if `stress` did not write it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError):
        lines = []
    if next(csv.reader(lines[:1]), None) != HEAD:
        raise ValueError(f"{path} was not written by stress; choose another file")
    return lines


@guarded
def read(path: str | Path) -> list[dict[str, str]]:
    """The rows of a file that `stress` wrote; none if there is no file."""
    return list(csv.DictReader(_lines(Path(path)))) if Path(path).exists() else []


def final(rows: list[dict], setting: str) -> dict[str, list[float]]:
    """Held-out accuracy after the last rollout, by arm, one entry a seed."""
    _check_names([setting], SETTINGS)
    last = str(SETTINGS[setting].rollouts - 1)
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["setting"] == setting and row["step"] == last:
            found.setdefault(row["arm"], []).append(float(row["accuracy"]))
    return {arm: found[arm] for arm in ARMS if arm in found}


def column(
    rows: list[dict], setting: str, arm: str, name: str, steps: int | None = None
) -> list[list[float]]:
    """A column by rollout, a list for each seed; the first `steps` rollouts.

    NaN where nothing was measured (accuracy between evaluations).
    """
    _check_names([setting], SETTINGS)
    _check_names([arm], ARMS)
    table: dict[str, list[float]] = {}
    for row in rows:
        if row["setting"] == setting and row["arm"] == arm:
            number = float(row[name]) if row[name] else math.nan
            table.setdefault(row["seed"], []).append(number)
    return [values[:steps] for values in table.values()]


def _run(job: tuple[str, str, int]) -> tuple[list[list], str]:
    """The rows of a run, and why it ended early, if it did."""
    setting, arm, seed = job
    algorithm, changed = ARMS[arm].build()
    model, tokenizer, _ = _start(setting)
    config = replace(SETTINGS[setting], seed=seed, **changed)
    history = train(
        algorithm, config=config, model=model, tokenizer=tokenizer, progress=False
    )
    rows = [[*job, *(_short(row.get(c)) for c in COLUMNS)] for row in history.rows]
    return rows, str(history.ended or "")


def _start(setting: str):
    return warm_start(WarmStart(preset="tiny-moe" if setting in ON_MOE else "tiny"))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _append(path: Path, rows: list[list]) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
