"""The runs of the toy worlds that claims rest on: a cell, a warm start, a seed.

Every run has 30 rollouts of 32 prompts × 8 responses and K updates each. Runs with the
same world, warm start and seed meet the same problems, so arms are compared in pairs.
They are sampled with the plain `Decoder`, since `pretrained.fast` draws different
samples in bfloat16.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from experiments.arms import ARMS, NEED_MOE, check_known, corrected
from experiments.behaviour import behaviour
from experiments.drift import Drift, Pace
from experiments.experiment import Experiment, Job, trained
from experiments.sorting import Sorting
from refimpl.config import TrainConfig
from refimpl.evaluation import RIGHT, pass_at
from refimpl.sampling import sample
from refimpl.sft import WarmStart, shipped, weights_digest
from refimpl.tasks import HabitWorld, rare_careful
from refimpl.validation import UserError

WORLDS: dict[str, Callable[..., WarmStart]] = {
    "sums": WarmStart,
    "rare": functools.partial(WarmStart, world=rare_careful()),
    "sorting": functools.partial(WarmStart, world=Sorting()),
    "moe": functools.partial(WarmStart, preset="tiny-moe"),
}
World = Literal["sums", "rare", "sorting", "moe"]
OLD, FIVE, TEN, TWENTY = range(5), range(10, 15), range(10, 20), range(10, 30)
"""Warm starts. Of the old ones only 0 still exists; the weights of the others are lost,
and their runs cannot be repeated. New runs begin from starts in the clone (ten, for
sums twenty, for sorting five) and use seeds that no other start uses (`nested`)."""
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
"""Learning rates of the stale runs (K = 16) in chapters 05 and 08 to 11."""
ANSWERS, PROBLEMS = 64, 128
"""Answers per problem, and problems, for measuring pass@k and maj@k."""
AROUND = tuple(
    f"{when}/{what}"
    for when in ("before", "after")
    for what in ("pass@1", "pass@8", "pass@64", "maj@8")
)
COLUMNS = (
    *"step reward num_samples entropy completions/mean_length length/wrong".split(),
    *"habit/careful habit_accuracy/careful clip_ratio/region_mean".split(),
    *"log_ratio/q01 log_ratio/q99 accuracy drift/kl drift/step".split(),
    *"drift/good drift/bad drift/shared".split(),
    *"drift/within_small router/expert_change sampling/kl".split(),
    *AROUND,
)


def settings(rate: float = 2e-4, updates: int = 16) -> TrainConfig:
    """Return the common settings of these runs, at a learning rate and K per rollout.

    Raises `UserError` if there are no runs with this K.
    """
    if updates not in UPDATES:
        known = ", ".join(map(str, UPDATES))
        raise UserError(f"K must be one of {known}, got {updates!r}")
    return replace(BASE, learning_rate=rate, **UPDATES[updates])


@dataclass(frozen=True)
class Cell:
    """Everything about a run except its warm start and seed.

    `changed`: settings of `TrainConfig` in addition to the arm's own. `answers`:
    measure pass@k and maj@k before and after. Raises `UserError` on an unknown arm,
    world or K, and on an arm that needs routers in a world without them.
    """

    arm: str
    rate: float = 2e-4
    updates: int = 16
    world: World = "sums"
    changed: tuple[tuple[str, Any], ...] = ()
    answers: bool = False

    def __post_init__(self):
        check_known("arm", [self.arm], ARMS)
        check_known("world", [self.world], WORLDS)
        if self.arm in NEED_MOE and self.world != "moe":
            raise UserError(f"{self.arm} needs a mixture of experts: world='moe'")
        settings(self.rate, self.updates)

    def job(self, start: int, seed: int) -> Job:
        """Return a run of this cell as plain values."""
        return {
            "arm": self.arm,
            "world": self.world,
            "start": start,
            "updates": self.updates,
            "rate": self.rate,
            "changed": dict(self.changed),
            "answers": self.answers,
            "seed": seed,
        }


def nested(start: int, j: int) -> int:
    """Return seed j of a start. New starts share no problems and no random numbers."""
    return j if start in OLD else 100 * start + j


@functools.cache
def begins(world: World, start: int) -> str | dict[str, Any]:
    """Return the SHA-256 of a start's weights, if the package ships them.

    Otherwise return the warm start's settings that are not at their default. Such a run
    is named by the recipe alone, and its line records the resulting weights.
    """
    settings = WORLDS[world](seed=start)
    if shipped(settings):
        return weights_digest(settings)
    usual = asdict(WarmStart())
    return {n: v for n, v in asdict(settings).items() if v != usual[n]}


@functools.cache
def formula(arm: str, changed: tuple[tuple[str, Any], ...] = ()) -> str:
    """Return the `behaviour` of an arm with its own settings and these."""
    algorithm, chosen = ARMS[arm].build()
    return behaviour(algorithm, replace(BASE, **chosen | corrected(dict(changed))))


class Evidence(Experiment):
    """The runs of all claims and studies.

    A job may hold `pace`, which is ‖Δθ‖ per rollout of the run that it follows.
    """

    name = "evidence"
    columns = COLUMNS

    def config(self, job):
        _, chosen = ARMS[job["arm"]].build()
        changed = {"seed": job["seed"]} | corrected(job["changed"])
        return replace(settings(job["rate"], job["updates"]), **chosen | changed)

    def warm(self, job):
        return WORLDS[job["world"]](seed=job["start"])

    def behaviour(self, job):
        return formula(job["arm"], tuple(job["changed"].items()))

    def facets(self, job):
        named = {name: x for name, x in job.items() if name != "pace"}
        if ARMS[job["arm"]].corrections:  # was a setting when the runs got their names
            named["detach_shift"] = False
        return named | {"begins": begins(job["world"], job["start"])}

    def make(self, job):
        """Train, and measure the movement; for `answers` also pass@k and maj@k.

        To choose the first learning rate at a pace, one rollout is made and
        discarded.
        """
        given, pace = self.given(job), job.get("pace")
        given["algorithm"], given["log_probs"] = ARMS[job["arm"]].method()
        model, given["corrections"] = given["model"], ARMS[job["arm"]].corrections

        def made(config: TrainConfig):
            hooks = [Drift(model), *([Pace(pace)] if pace else [])]
            return trained(**given | {"config": config, "hooks": hooks})

        config = self.config(job)
        if given["corrections"]:  # in place of the method's own
            config = replace(config, router_shift=False)
        if pace:
            tried = made(replace(config, rollouts=1, eval_problems=1))["drift/step"][0]
            config = replace(config, learning_rate=job["rate"] * pace[0] / tried)
        history = made(config)
        if job["answers"]:
            for when, policy in (("before", model), ("after", history.model)):
                found = around(policy, given["tokenizer"], given["task"])
                history.rows[-1] |= {f"{when}/{name}": x for name, x in found.items()}
        return history


RUNS = Evidence()


def around(model, tokenizer, world: HabitWorld) -> dict[str, float]:
    """Measure pass@1, pass@8, pass@64 and maj@8 by 64 answers to each held-out problem.

    The answer is the text after the last `#`.
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
    """Compute maj@k: how often the most frequent of k answers is right.

    `scores` is (problems, n), and `answers` holds all answers as texts. A problem's n
    samples make n // k lots of k, so none is counted twice and the mean
    over lots is unbiased. On a tie the first answer counts. (Wang et al. 2022,
    2203.11171, call it self-consistency.)
    """
    won = []
    for right, given in zip((scores > RIGHT).tolist(), answers, strict=True):
        for first in range(0, len(given) - k + 1, k):
            lot = given[first : first + k]
            (common, _), *_ = Counter(lot).most_common(1)
            won.append(right[first + list(lot).index(common)])
    return sum(won) / len(won)
