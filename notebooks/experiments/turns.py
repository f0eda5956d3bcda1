"""A tool's tokens, truncated answers and credit for turns: three declared experiments.

    1. observations   the tokens that the calculator wrote are trained on as well
    2. cut            answers cut off at 20 tokens: without a loss, or paid 0
    3. credit         GiGPO, and differences of state scores, against GRPO

`python -m experiments.turns`, called in `notebooks/`, makes the runs that the store
`figures/data/turns` does not hold yet, and prints the outcomes of what was declared
(`DECLARED`). All of it was fixed after a look at seeds 0 and 1, which are not used.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import refimpl as rl
from experiments.experiment import Experiment, command
from refimpl.advantages import Scored, group_relative
from refimpl.algorithms import ALGORITHMS
from refimpl.history import mean_over
from refimpl.hooks import evaluate
from refimpl.models import one_thread
from refimpl.rollout import Batch
from refimpl.run import Run
from refimpl.tasks import Calculator, make_tokenizer
from refimpl.turns import gigpo, seen, state_differences

WORLD, SEEDS = Calculator(), range(10, 20)
START = rl.WarmStart(world=WORLD)
END = make_tokenizer(WORLD.characters).eos_token_id
GRPO = ALGORITHMS["grpo"]
CONFIG = rl.TrainConfig(
    rollouts=14,
    max_new_tokens=64,
    max_turns=7,
    normaliser="token_mean",
    eval_every=14,
    eval_problems=512,
)
ARMS: dict[str, dict[str, Any]] = {
    "right": {},
    "observations": {},
    "cut, no loss": {"max_new_tokens": 20, "overlong_filtering": True},
    "cut, paid 0": {"max_new_tokens": 20},
    "gigpo": {"gamma": 0.95},
    "differences": {"gamma": 0.0},
}
"""The settings that each arm changes; "right" is GRPO with the right mask."""
ESTIMATORS: dict[str, Callable] = {
    "grpo": lambda scored: group_relative(scored)[:, None] * scored.mask,
    "gigpo, 1": gigpo,
    "gigpo, 2": partial(gigpo, omega=2.0),
    "differences, 1": state_differences,
    "differences, 2": partial(state_differences, omega=2.0),
    "differences, 4": partial(state_differences, omega=4.0),
}
"""With their ω."""
TRAINED = {"gigpo": gigpo, "differences": ESTIMATORS["differences, 4"]}
FIRST = ("norm", "norm_right", "cosine", "inserted", "nats", "nats_inserted")
LAST = 3
"""The last rollouts, over which a run's reward and share of cut answers are means."""
DECLARED = {
    "reward, right − observations, at least": 0.15,
    "first gradient's norm, in multiples of the right one's, at least": 3.0,
    "its cosine with the right one, below": 0.5,
    "reward, gigpo − grpo, below in size": 0.05,
}
"""And without a number: in each run the share cut off rises where it has no loss, and
falls where it is paid 0; of right turns in answers that failed, GRPO and GiGPO give
none a positive advantage, and differences of state scores at ω = 4 give one to most.

All but one came true: where answers that are cut off have no loss, their share did not
rise. It stayed (0.05 less, −0.20 to +0.06), and fell by 0.20 where they are paid 0."""


class Turns(Experiment):
    """GRPO with the calculator, from one start, ten seeds of each arm."""

    name = "turns"
    columns = (
        *"step reward accuracy entropy grad_norm frac_reward_zero_std".split(),
        *"completions/clipped_ratio completions/mean_length habit/guess".split(),
        *("span", "turns"),
        *(f"first/{name}" for name in FIRST),
        "credit/turns",
        *(f"credit/{name}" for name in ESTIMATORS),
    )

    def jobs(self):
        for seed in SEEDS:
            for arm in ARMS:
                yield {"arm": arm, "seed": seed}

    def config(self, job):
        return replace(CONFIG, seed=job["seed"], **ARMS[job["arm"]])

    def warm(self, job):
        return START

    def make(self, job):
        arm, method = job["arm"], GRPO
        if arm in TRAINED:
            method = replace(GRPO, advantages=TRAINED[arm])
        made = rl.prepare(method, self.config(job), task=WORLD, reward=ended)
        if arm == "observations":  # the sampler gave inserted tokens no log-probs
            made.old_logp_of = "policy"
        with one_thread(made.model):
            rollouts(made, arm)
        return made.history


RUNS = Turns()


def with_observations(run: Run, batch: Batch) -> Batch:
    """Make the loss count all tokens of an answer, whoever wrote them."""
    steps = torch.arange(batch.mask.shape[1])
    mask = (steps < batch.rollout.span[:, None]).to(batch.mask)
    rollout = replace(batch.rollout, mask=mask)
    old_logp = run.fixed(rollout).old_logp
    return replace(batch, rollout=rollout, mask=mask, old_logp=old_logp)


def gradient(run: Run, batch: Batch) -> Tensor:
    """Compute the loss's gradient on the whole rollout, before the first update."""
    logp = run.read(run.model, batch.rollout).logp
    weight = rl.normalisers.token_mean(batch.mask)
    given = logp, batch.old_logp, batch.advantages, batch.mask, weight
    loss = run.algorithm.policy_loss(*given).loss
    trained = [p for p in run.model.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])


def first_gradients(run: Run, right: Batch, wrong: Batch) -> dict[str, float]:
    """Compare the first gradients of two masks, and what the inserted tokens cost."""
    own, whole = gradient(run, right), gradient(run, wrong)
    inserted = wrong.mask * (1 - right.mask)
    return {
        "first/norm": whole.norm().item(),
        "first/norm_right": own.norm().item(),
        "first/cosine": torch.cosine_similarity(own, whole, dim=0).item(),
        "first/inserted": (inserted.sum() / wrong.mask.sum()).item(),
        "first/nats": mean_over(right.old_logp, right.mask),
        "first/nats_inserted": mean_over(wrong.old_logp * inserted, inserted),
    }


def credit(run: Run, batch: Batch, rewards: Tensor) -> dict[str, float]:
    """Measure the share of right turns in answers that failed which have Â > 0.

    Groups of equal rewards, which GRPO learns nothing from, are left out.
    """
    rollout = batch.rollout
    found = seen(run.task, run.tokenizer, rollout)
    scored = Scored(rewards, rollout.group, rollout.mask, gamma=0.95, **found)
    right = found["state_scores"].diff(dim=-1) > 0
    right &= (rewards == 0)[:, None] & (group_relative(scored) != 0)[:, None]
    tokens = right.gather(1, rollout.turns.clamp(min=0)) & (rollout.turns >= 0)
    # A turn counts once: by its first token.
    before = torch.nn.functional.pad(rollout.turns, (1, 0), value=-1)[:, :-1]
    tokens &= before != rollout.turns
    row = {"credit/turns": float(tokens.sum())}
    for name, estimator in ESTIMATORS.items():
        gamma = 0.0 if name.startswith("differences") else 0.95
        paid = estimator(replace(scored, gamma=gamma)) > 0
        row[f"credit/{name}"] = (paid & tokens).sum().item() / tokens.sum().item()
    return row


def rollouts(made: Run, arm: str) -> None:
    """Make the rollouts and updates of a run, and measure."""
    for step in range(CONFIG.rollouts):
        batch, row = rl.collect(made, step)
        row["span"] = batch.rollout.span.float().mean().item()
        row["turns"] = (batch.rollout.turns.amax(-1) + 1).float().mean().item()
        if arm == "observations":
            right, batch = batch, with_observations(made, batch)
            if step == 0:
                row |= first_gradients(made, right, batch)
        if arm == "right" and step == 0:
            row |= credit(made, batch, rewards_of(made, batch, step))
        row |= rl.updates(made, batch, step)
        made.history.add(step, row, 0.0)
        evaluate(made, step)


def ended(prompts, completions, *, answer, completion_ids, **columns) -> list[float]:
    """Return the world's reward, but 0 for an answer that was cut off."""
    paid = WORLD.reward(prompts, completions, answer=answer)
    return [x * (ids[-1] == END) for x, ids in zip(paid, completion_ids, strict=True)]


def rewards_of(run: Run, batch: Batch, step: int) -> Tensor:
    """Compute the rewards of a rollout's answers, for the problems of `collect`."""
    seed = rl.seeds.seed_for(run.config.seed, step, "q")
    problems = run.task.sample(run.config.prompts_per_rollout, seed)
    truth = [row["answer"] for row in problems for _ in range(run.config.group_size)]
    texts, ids = batch.rollout.texts(run.tokenizer), batch.rollout.completion_ids()
    return torch.tensor(ended(None, texts, answer=truth, completion_ids=ids))


# Outcomes


def by_seed(column: str, first: bool = False) -> pd.DataFrame:
    """Return a column's mean over a run's last rollouts (or first), by seed and arm."""
    rows = RUNS.table("arm", "seed")
    chosen = rows["step"] == 0 if first else rows["step"] >= CONFIG.rollouts - LAST
    return rows[chosen].pivot_table(column, "seed", "arm")


def outcomes() -> pd.DataFrame:
    """Return the mean, least and largest of what was measured, over the seeds."""
    reward, cut = by_seed("reward"), "completions/clipped_ratio"
    moved = by_seed(cut) - by_seed(cut, first=True)
    norm, right, cosine = (
        by_seed(f"first/{name}", first=True)["observations"]
        for name in ("norm", "norm_right", "cosine")
    )
    measured = {
        "reward, right − observations": reward["right"] - reward["observations"],
        "first gradient's norm / the right one's": norm / right,
        "its cosine with the right one": cosine,
        "share cut off, last − first, no loss": moved["cut, no loss"],
        "share cut off, last − first, paid 0": moved["cut, paid 0"],
        "reward, gigpo − grpo": reward["gigpo"] - reward["right"],
        "reward, differences − grpo": reward["differences"] - reward["right"],
    }
    measured |= {f"reward, {arm}": reward[arm] for arm in ARMS}
    measured |= {
        f"right turns of failed answers with credit, {name}": by_seed(
            f"credit/{name}", first=True
        )["right"]
        for name in ESTIMATORS
    }
    return pd.DataFrame(measured).agg(["mean", "min", "max", "count"]).T


if __name__ == "__main__":
    command(RUNS, lambda: outcomes().round(3).to_string())
