"""`python -m refimpl stress`: where methods part, on many stale updates.

K = 16 updates per rollout: 4 mini-batches, 4 passes. Every arm starts from the same
warm start and meets the same problems. One row a rollout, appended as each run ends,
so that an interrupted command goes on where it stopped.
"""

import csv
import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from tqdm.auto import tqdm

from refimpl.algorithms import Algorithm, from_gate, get
from refimpl.trainer import TrainConfig, train
from refimpl.warm_start import warm_start

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
}
STORED = Path(__file__).resolve().parents[1] / "figures" / "data" / "stress.csv"
"""The runs that the chapters draw."""

COLUMNS = (
    "step reward entropy habit/careful habit_accuracy/careful length/wrong "
    "clip_ratio/region_mean log_ratio/q01 log_ratio/q99 ratio/max_deviation accuracy"
).split()


def one_sided(tau: float) -> Callable:
    """SAPO's sech² where a token moves on, 1 where it comes back (as PPO's min)."""

    def gate(r, advantages):
        soft = 1 / torch.cosh((tau * (r - 1) / 2).clamp(-40, 40)) ** 2
        returning = ((advantages > 0) & (r < 1)) | ((advantages < 0) & (r > 1))
        return torch.where(returning, 1.0, soft)

    return gate


@dataclass(frozen=True)
class Arm:
    """A method with its hyperparameters; `tau` alone: the one-sided gate."""

    algorithm: str
    hyperparameters: tuple[tuple[str, float], ...] = ()

    def build(self) -> tuple[Algorithm, dict]:
        settings = dict(self.hyperparameters)
        if self.algorithm == "one_sided":
            return from_gate(one_sided(**settings), "one_sided"), {}
        return get(self.algorithm), settings


def _sapo(pos: float, neg: float) -> Arm:
    return Arm("sapo", (("tau_pos", pos), ("tau_neg", neg)))


ARMS = {
    "PPO": Arm("ppo"),
    "GRPO": Arm("grpo"),
    "GRPO (0.67, 1.49)": Arm("grpo", (("epsilon_low", 0.33), ("epsilon_high", 0.49))),
    "Dr. GRPO": Arm("dr_grpo"),
    "GSPO 3e-4": Arm("gspo"),
    "GSPO 0.03": Arm("gspo", (("epsilon_low", 0.03), ("epsilon_high", 0.04))),
    "DAPO": Arm("dapo"),
    "CISPO 5": Arm("cispo"),
    "CISPO 1.28": Arm("cispo", (("max_ratio", 1.28),)),
    "GMPO": Arm("gmpo"),
    "SAPO 1.0": _sapo(1.0, 1.05),
    "SAPO 8.8": _sapo(8.8, 8.8),
    "SAPO 8.8, neg ½": _sapo(8.8, 4.4),
    "SAPO 8.8, neg 2": _sapo(8.8, 17.6),
    "one-sided 8.8": Arm("one_sided", (("tau", 8.8),)),
    "one-sided 1.0": Arm("one_sided", (("tau", 1.0),)),
}


def stress(
    out: Path,
    arms: Iterable[str] = tuple(ARMS),
    settings: Iterable[str] = tuple(SETTINGS),
    seeds: int = 5,
    workers: int = 1,
) -> None:
    """Run every arm × setting × seed that `out` does not hold yet.

    Raises `ValueError` on an arm or a setting that does not exist.
    """
    for given, known in ((arms, ARMS), (settings, SETTINGS)):
        for name in given:
            if name not in known:
                raise ValueError(f"unknown {name!r}; one of: {', '.join(known)}")
    warm_start()  # once, before the workers ask for it
    done = {(r["setting"], r["arm"], int(r["seed"])) for r in read(out)}
    wanted = [
        job
        for job in itertools.product(settings, arms, range(seeds))
        if job not in done
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        _append(out, [["setting", "arm", "seed", *COLUMNS]])
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for rows in tqdm(pool.map(_run, wanted), total=len(wanted), desc="runs"):
            _append(out, rows)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a file that `stress` wrote; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _run(job: tuple[str, str, int]) -> list[list]:
    setting, arm, seed = job
    algorithm, hyperparameters = ARMS[arm].build()
    model, tokenizer, _ = warm_start()
    config = replace(SETTINGS[setting], seed=seed, hyperparameters=hyperparameters)
    history = train(
        algorithm, config=config, model=model, tokenizer=tokenizer, progress=False
    )
    return [[*job, *(_short(row.get(c)) for c in COLUMNS)] for row in history.rows]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _append(path: Path, rows: list[list]) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
