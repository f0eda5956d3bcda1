"""The runs of the toy worlds that claims rest on: a cell, a warm start, a seed.

Every run has 30 rollouts of 32 prompts × 8 responses and K updates each. Those of one
world, warm start and seed meet the same problems: arms can be compared in pairs. They
are sampled by the plain `Decoder`: in bfloat16 `real.fast` draws other samples.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from experiments.arms import ARMS, NEED_MOE
from experiments.behaviour import behaviour
from experiments.drift import Drift, Pace
from experiments.pool import about, trained
from refimpl.cli import gathered
from refimpl.config import TrainConfig
from refimpl.evaluation import RIGHT, pass_at
from refimpl.history import History
from refimpl.sampling import sample
from refimpl.starts import WarmStart, shipped, warm_start, weights_digest
from refimpl.tasks import HabitWorld, Sorting, rare_careful
from refimpl.validation import UserError, nearest

WORLDS: dict[str, Callable[..., WarmStart]] = {
    "sums": WarmStart,
    "rare": functools.partial(WarmStart, world=rare_careful()),
    "sorting": functools.partial(WarmStart, world=Sorting()),
    "moe": functools.partial(WarmStart, preset="tiny-moe"),
}
World = Literal["sums", "rare", "sorting", "moe"]
OLD, FIVE, TEN, TWENTY = range(5), range(10, 15), range(10, 20), range(10, 30)
"""Warm starts. Of the old ones only 0 can be had, the others' weights are lost: their
runs are history. New runs begin from those that lie in a clone: ten, of sums twenty, of
sorting five, and take seeds that no other start takes (`nested`)."""
UPDATES: dict[int, dict[str, Any]] = {
    1: {"minibatches": 1, "epochs": 1, "allow_on_policy": True},
    4: {"minibatches": 4, "epochs": 1},
    16: {"minibatches": 4, "epochs": 4},
}
"""K = minibatches × epochs."""
BASE = TrainConfig(
    rollouts=30,
    prompts_per_rollout=32,
    eval_every=30,
    eval_problems=1024,
    dynamic_sampling=False,
    overlong_share=0.0,
)
STALE = {"mild": 2e-4, "medium": 4e-4, "hard": 6e-4}
"""The learning rates of the stale runs, K = 16, that chapters 05 and 08 to 11 show."""
ANSWERS, PROBLEMS = 64, 128
"""Answers to each problem, and problems, where pass@k and maj@k are measured."""
AROUND = tuple(
    f"{when}/{what}"
    for when in ("before", "after")
    for what in ("pass@1", "pass@8", "pass@64", "maj@8")
)
COLUMNS = (
    *"step reward num_samples entropy completions/mean_length length/wrong".split(),
    *"habit/careful habit_accuracy/careful grad_norm clip_ratio/region_mean".split(),
    *"log_ratio/q01 log_ratio/q99 ratio/max_deviation accuracy step_time".split(),
    *"drift/kl drift/step drift/tokens drift/responses drift/within".split(),
    *"drift/good drift/bad drift/shared".split(),
    *"drift/within_small router/expert_change router/shift sampling/kl".split(),
    *AROUND,
)


def settings(rate: float = 2e-4, updates: int = 16) -> TrainConfig:
    """What these runs have in common, at a learning rate and K updates a rollout.

    Raises `UserError` on a K without runs.
    """
    if updates not in UPDATES:
        known = ", ".join(map(str, UPDATES))
        raise UserError(f"K must be one of {known}, got {updates!r}")
    return replace(BASE, learning_rate=rate, **UPDATES[updates])


@dataclass(frozen=True)
class Cell:
    """What runs of one kind have in common: all but warm start and seed.

    `changed`: settings of `TrainConfig` beside the arm's own. `answers`: measure pass@k
    and maj@k before and after. Raises `UserError` on an unknown arm, world or K, and
    on an arm that needs routers in a world without.
    """

    arm: str
    rate: float = 2e-4
    updates: int = 16
    world: World = "sums"
    changed: tuple[tuple[str, Any], ...] = ()
    answers: bool = False

    def __post_init__(self):
        for what, name, known in (
            ("arm", self.arm, ARMS),
            ("world", self.world, WORLDS),
        ):
            if name not in known:
                raise UserError(
                    f"unknown {what} {name!r}{nearest(str(name), known)}; one of: "
                    f"{', '.join(known)}"
                )
        if self.arm in NEED_MOE and self.world != "moe":
            raise UserError(f"{self.arm} needs a mixture of experts: world='moe'")
        settings(self.rate, self.updates)

    def config(self, seed: int) -> TrainConfig:
        """The settings of its run `seed`."""
        _, chosen = ARMS[self.arm].build()
        config = settings(self.rate, self.updates)
        changed = gathered(dict(self.changed))
        return replace(config, **chosen | {"seed": seed} | changed)


def nested(start: int, j: int) -> int:
    """Seed j of a start: no two of the new starts share problems or dice."""
    return j if start in OLD else 100 * start + j


def check_start(world: World, start: int) -> None:
    """Raise `UserError` unless everybody can begin a run from this start."""
    if not shipped(WORLDS[world](seed=start)):
        raise UserError(
            f"start {start} of {world} does not lie in this clone: nobody else has its "
            "weights, and its runs could not be compared with others. Take "
            f"{TEN.start} to {TEN.stop - 1} (sums: to {TWENTY.stop - 1}, sorting: to "
            f"{FIVE.stop - 1})"
        )


def spec(cell: Cell, start: int, seed: int) -> dict[str, Any]:
    """A run's whole configuration as plain values, and what its method answers."""
    return {
        "experiment": "evidence",
        "arm": cell.arm,
        "world": cell.world,
        "start": start,
        "updates": cell.updates,
        "rate": cell.rate,
        "changed": dict(cell.changed),
        "answers": cell.answers,
        "begins": begins(cell.world, start),
        "behaviour": formula(cell.arm, cell.changed),
        **asdict(cell.config(seed)),
    }


@functools.cache
def begins(world: World, start: int) -> str | dict[str, Any]:
    """The SHA-256 of a start's weights where the package ships them.

    Else the warm start's settings that are not at their default: a run of those is
    known by the recipe alone, and its line says which weights came of it.
    """
    settings = WORLDS[world](seed=start)
    if shipped(settings):
        return weights_digest(settings)
    usual = asdict(WarmStart())
    return {n: v for n, v in asdict(settings).items() if v != usual[n]}


@functools.cache
def formula(arm: str, changed: tuple[tuple[str, Any], ...] = ()) -> str:
    """The `behaviour` of an arm with settings of its chosen and these."""
    algorithm, chosen = ARMS[arm].build()
    return behaviour(algorithm, replace(BASE, **chosen | gathered(dict(changed))))


def run(
    cell: Cell, start: int, seed: int, pace: Sequence[float] = ()
) -> tuple[list[dict], dict[str, str]]:
    """A run's rows, and what else is to be known of it.

    `pace`: ‖Δθ‖ of every rollout of the run that it follows. What the first rollout
    would move is tried before, and thrown away.
    """
    begun = time.perf_counter()
    origin = WORLDS[cell.world](seed=start)
    model, tokenizer, _ = warm_start(origin)
    algorithm, read = ARMS[cell.arm].method()

    def made(config: TrainConfig) -> History:
        return trained(
            algorithm,
            config=config,
            model=model,
            tokenizer=tokenizer,
            task=origin.world,
            log_probs=read,
            hooks=[Drift(model), *([Pace(pace)] if pace else [])],
        )

    config = cell.config(seed)
    if pace:
        tried = made(replace(config, rollouts=1, eval_problems=1))["drift/step"][0]
        config = replace(config, learning_rate=cell.rate * pace[0] / tried)
    history = made(config)
    rows = history.rows
    if cell.answers:
        for when, policy in (("before", model), ("after", history.model)):
            measured = around(policy, tokenizer, origin.world)
            rows[-1] |= {f"{when}/{name}": value for name, value in measured.items()}
    return rows, about(history, begun, weights_digest(origin))


def around(model, tokenizer, world: HabitWorld) -> dict[str, float]:
    """pass@1, pass@8, pass@64 and maj@8 from 64 answers to each held-out problem.

    An answer is what stands behind the last `#`.
    """
    rows = world.held_out(PROBLEMS)
    prompts = [row["prompt"] for row in rows]
    texts = sample(model, tokenizer, prompts, group_size=ANSWERS).texts(tokenizer)
    wanted = [row["answer"] for row in rows for _ in range(ANSWERS)]
    scores = torch.tensor(world.reward(prompts, texts, answer=wanted)).double()
    scores = scores.view(-1, ANSWERS)
    answers = [text.rpartition("#")[2] for text in texts]
    lots = [answers[i : i + ANSWERS] for i in range(0, len(answers), ANSWERS)]
    passed = {f"pass@{k}": pass_at(scores, k) for k in (1, 8, 64)}
    return {**passed, "maj@8": maj_at(scores, lots, 8)}


def maj_at(scores: Tensor, answers: Sequence[Sequence[str]], k: int) -> float:
    """maj@k: how often the answer that most of k samples give is right.

    `scores` (problems, n); `answers` holds what each sample answers, as text. A
    problem's n samples make n // k lots of k, so none is counted twice and the mean
    over lots is unbiased. On a tie the answer that came first counts. (Wang et al.
    2022, 2203.11171, call it self-consistency.)
    """
    won = []
    for right, given in zip((scores > RIGHT).tolist(), answers, strict=True):
        for first in range(0, len(given) - k + 1, k):
            lot = given[first : first + k]
            (common, _), *_ = Counter(lot).most_common(1)
            won.append(right[first + list(lot).index(common)])
    return sum(won) / len(won)
