"""Distillation on the student's own samples: chapter 17, and the runs that it shows.

A run is the library's, with other advantages: `prepare` and `collect` as in `train`,
then a teacher reads the rollout, and `updates` takes what it says.

`python -m course.distillation.distil toy` (or `worlds`, `smollm2`), from the folder
`notebooks`, makes the runs that the store `figures/data/distil` does not hold yet.
"""

import copy
import functools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

import refimpl as rl
from course import DATA
from experiments import store
from experiments.behaviour import behaviour
from refimpl import seeds
from refimpl.algorithms import ALGORITHMS
from refimpl.hooks import evaluate
from refimpl.options import Run
from refimpl.rollout import Batch, Rollout, pad_columns
from refimpl.sft import weights_digest
from refimpl.tasks import Arithmetic, Mix, Sorting
from refimpl.tasks.world import HabitWorld, correctness
from refimpl.validation import checked

STORE = DATA / "distil"
CURVES, ENDS_IN = ("tokens", "reward", "accuracy", "kl"), ("sums", "rows")
"""What is stored by rollout, and at the end: accuracy in two worlds."""
TOY = rl.TrainConfig(
    rollouts=20, learning_rate=4e-4, eval_every=2, hyperparameters={"correct": True}
)
"""REINFORCE with the token's ratio: Tinker's `importance_sampling` loss.

MOPD (2601.02780, 2606.30406) is this with `corrections={"token_mask": (low, high)}`: a
token's Â = sg[log π_T − log π_old] is multiplied by w = π_old/μ, or by 0 where w is
outside the band. (There it is π_θ in both. Here the ratio makes w to π_θ/μ, but gate
and Â stay what they were at the rollout's first update.)"""


def read_by(model, run: Run, rollout: Rollout) -> Float[Tensor, "B T"]:
    """A teacher's log-probs of a rollout, in the run's precision."""

    def read(part: Rollout) -> list[Tensor]:
        return [run.read(model, part).logp]

    return rollout.in_parts(read, run.config.micro_batch_size)[0]


Says = Callable[[Run, int, Batch], Tensor]
"""What a teacher makes of a rollout: log π_T of its tokens."""


@torch.no_grad()
def distributions(model, rollout: Rollout) -> Float[Tensor, "B T V"]:
    """Log-probs of the whole vocabulary at each response token, at temperature 1."""
    logits = model(rollout.ids, use_cache=False).logits
    where = (rollout.positions - 1)[:, :, None].expand(-1, -1, logits.shape[-1])
    return logits.gather(1, where).double().log_softmax(-1)


def state_only(teacher) -> Says:
    """The misreading of miles#2362: the whole vocabulary's KL as the penalty of
    whichever token was drawn."""

    def says(run: Run, step: int, batch: Batch) -> Tensor:
        own, other = (distributions(m, batch.rollout) for m in (run.model, teacher))
        kl = (own.exp() * (own - other)).sum(-1).to(batch.old_logp)
        return batch.old_logp - kl  # so that the advantage is −KL

    return says


def push(own: Tensor, advantage: Tensor) -> Tensor:
    """What a sampled token is expected to add to each logit: Σ_a π_a Â_a (1_a − π),
    from log-probs and advantages of the whole vocabulary, (…, V)."""
    pi = own.exp()
    return pi * (advantage - (pi * advantage).sum(-1, keepdim=True))


def spread(own: Tensor, advantage: Tensor) -> Tensor:
    """The variance of what one sampled token adds, summed over the logits, (…)."""
    pi = own.exp()
    square = 1 - 2 * pi + (pi**2).sum(-1, keepdim=True)  # |1_a − π|²
    second = (pi * advantage**2 * square).sum(-1)
    return second - (push(own, advantage) ** 2).sum(-1)


def top(own: Tensor, other: Tensor, k: int, tail: bool = False) -> Tensor:
    """The descent of Σ π log(π/π_T) over the student's k likeliest tokens, in the
    logits; `tail`: all the others count as one more token."""
    logits = own.detach().clone().requires_grad_()
    every = logits.log_softmax(-1)
    kept = every.detach().topk(k, -1).indices
    mine, theirs = every.gather(-1, kept), other.gather(-1, kept)
    loss = (mine.exp() * (mine - theirs)).sum()
    if tail and k < own.shape[-1]:
        rest = torch.zeros_like(own).scatter(-1, kept, 1.0) == 0
        gone = torch.tensor(-torch.inf, dtype=own.dtype)
        mine, theirs = (x.where(rest, gone).logsumexp(-1) for x in (every, other))
        loss = loss + (mine.exp() * (mine - theirs)).sum()
    return -torch.autograd.grad(loss, logits)[0]


def one(teacher) -> Says:
    """One teacher for all prompts."""
    return lambda run, step, batch: read_by(teacher, run, batch.rollout)


def routed(teachers, choose: Callable[[str], int]) -> Says:
    """Several: each prompt has its own."""

    def says(run: Run, step: int, batch: Batch) -> Tensor:
        ids, start = batch.rollout.ids, batch.rollout.prompt_length
        texts = [run.tokenizer.decode(row[:n]) for row, n in zip(ids, start)]
        each = torch.stack([read_by(one, run, batch.rollout) for one in teachers])
        return each[[choose(text) for text in texts], torch.arange(len(ids))]

    return says


def averaged(teachers) -> Says:
    """Several, whose log-probs are averaged for every prompt."""

    def says(run: Run, step: int, batch: Batch) -> Tensor:
        return sum(read_by(one, run, batch.rollout) for one in teachers) / len(teachers)

    return says


def told(teacher) -> Says:
    """A teacher that reads the right answer in the prompt, which the student does not:
    self-distillation, where it is the student as it was at first."""

    def says(run: Run, step: int, batch: Batch) -> Tensor:
        seed = seeds.seed_for(run.config.seed, step, "q")
        rows = run.task.sample(run.config.prompts_per_rollout, seed)
        with_answer = [hint(row) for row in rows]
        longer = asked(run.tokenizer, batch.rollout, with_answer)
        return pad_columns(read_by(teacher, run, longer), batch.mask.shape[1])

    return says


ENDS = "<|im_end|>\n<|im_start|>assistant"
"""Of a question in SmolLM2's chat template."""


def hint(row: dict) -> str:
    """A prompt that says its answer."""
    before, end, after = row["prompt"].rpartition(ENDS)
    return f"{before} (The answer is {row['answer']}.){end}{after}"


def asked(tokenizer, rollout: Rollout, prompts: list[str]) -> Rollout:
    """The same responses after other prompts, one per group."""
    starts = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    rows = []
    for i, group in enumerate(rollout.group.tolist()):
        first = int(rollout.prompt_length[i])
        answer = rollout.ids[i, first : first + int(rollout.span[i])]
        rows.append(torch.cat([torch.tensor(starts[group]), answer]))
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(starts[g]) for g in rollout.group.tolist()])
    return replace(rollout, ids=ids, prompt_length=lengths)


def distil(says: Says, config=TOY, **given) -> rl.History:
    """A run whose advantages are log π_T − log π_old, token by token; `kl` in its
    history is the mean of log π_old − log π_T over the rollout's tokens."""
    run = rl.prepare("reinforce", config, **given)
    run.zero_advantage_rows_matter = True
    for step in range(config.rollouts):
        batch, described = rl.collect(run, step)
        said = says(run, step, batch) - batch.old_logp
        described["kl"] = -((said * batch.mask).sum() / batch.mask.sum()).item()
        described |= rl.updates(run, replace(batch, advantages=said), step)
        run.history.add(step, described, 0.0)
        evaluate(run, step)
    return run.history


def curve(history: rl.History) -> dict[str, list]:
    """What is stored of a run: by rollout."""
    size = history.rows[0]["num_samples"]
    tokens = [length * size for length in history["completions/mean_length"]]
    kl = history["kl"] if "kl" in history.rows[0] else None
    return {
        "tokens": [round(x) for x in tokens],
        "reward": [round(x, 4) for x in history["reward"]],
        "accuracy": [None if x != x else round(x, 4) for x in history["accuracy"]],
        "kl": kl and [round(x, 5) for x in kl],
    }


@checked
class Mixed(HabitWorld):
    """Sums and rows to sort, half of each; a habit is that of the prompt's world."""

    habit_mix: Mix = (0.30, 0.45, 0.25)

    worlds: ClassVar[tuple[HabitWorld, ...]] = (Arithmetic(), Sorting())
    purpose = "mixed "

    def _problem(self, rng) -> dict:
        row = rng.choice(self.worlds)._problem(rng)
        return {"prompt": row["prompt"], "answer": str(row["answer"])}

    def _of(self, prompt: str):
        return self.worlds["+" not in prompt]

    def careful(self, prompt, rng=None):
        return self._of(prompt).careful(prompt, rng)

    def guess(self, prompt, rng):
        return self._of(prompt).guess(prompt, rng)

    def ramble(self, prompt, rng):
        return self._of(prompt).ramble(prompt, rng)


MIXED = rl.WarmStart(world=Mixed(), skill_steps=900)


def is_sorting(prompt: str) -> int:
    """Which of the two worlds a prompt is from."""
    return int("+" not in prompt)


def teaching(rollouts: int) -> rl.TrainConfig:
    """Settings of a teacher's run."""
    return rl.TrainConfig(rollouts=rollouts, seed=1000, eval_every=rollouts)


def best(start, tokenizer, task=None, rollouts: int = 60, **given) -> rl.History:
    """Train a teacher with GRPO on a task, from a start."""
    config = teaching(rollouts)
    given |= {"model": start, "tokenizer": tokenizer, "task": task, "progress": False}
    return rl.train("grpo", config=config, **given)


def without_hyperparameters(config: rl.TrainConfig) -> rl.TrainConfig:
    """The config without REINFORCE's hyperparameters."""
    return replace(config, hyperparameters={})


def rewarded(config, **given) -> rl.History:
    """GRPO with the same rollouts and learning rate."""
    config = without_hyperparameters(config)
    return rl.train("grpo", config=config, progress=False, **given)


Job = tuple[str, int, str, rl.TrainConfig, Callable]
"""Arm, seed, method, settings, and what makes the run."""


def toy(n_seeds: int = 5) -> Iterator[Job]:
    """The arithmetic world: one teacher, the shipped start, several seeds."""
    start, tokenizer, _ = rl.warm_start()
    given = {"model": start, "tokenizer": tokenizer}
    teacher = best(start, tokenizer)
    yield "teacher", 0, "grpo", teaching(60), lambda: curve(teacher)
    for seed in range(n_seeds):
        config = replace(TOY, seed=seed)
        says = one(teacher.model)
        learns = functools.partial(distil, says, config, **given)
        yield "distilled", seed, "reinforce", config, lambda f=learns: curve(f())
        earns = functools.partial(rewarded, config, **given)
        config = without_hyperparameters(config)
        yield "RL", seed, "grpo", config, lambda f=earns: curve(f())


def paid_for(own: int) -> Callable:
    """Right answers in one world, and in the other an answer without steps."""

    def reward(prompts, completions, *, answer, **columns) -> list[float]:
        right = correctness(prompts, completions, answer=answer)
        rows = zip(prompts, completions, right)
        return [r if is_sorting(p) == own else float(c[:1] == "#") for p, c, r in rows]

    return reward


def worlds(n_seeds: int = 3) -> Iterator[Job]:
    """Two worlds, and teachers of them, from a start that knows both a little."""
    start, tokenizer, _ = rl.warm_start(MIXED)

    def ends(model) -> dict[str, float]:
        """Held-out accuracy in each world."""
        return {
            name: rl.evaluate(model, tokenizer, task, problems=512)
            for name, task in zip(ENDS_IN, Mixed.worlds)
        }

    def with_ends(history) -> dict:
        return curve(history) | ends(history.model)

    taught = "grpo", teaching(40)
    yield "start", 0, *taught, lambda: ends(start)
    for name, task in zip(ENDS_IN, Mixed.worlds):
        make_alone = functools.partial(best, start, tokenizer, task, 40)
        yield f"RL on {name} alone", 0, *taught, lambda f=make_alone: ends(f().model)
    teachers = [
        best(start, tokenizer, Mixed(), 40, reward=paid_for(own)).model
        for own in range(2)
    ]
    for name, teacher in zip(("teacher of sums", "teacher of rows"), teachers):
        yield name, 0, *taught, lambda t=teacher: ends(t)
    given = {"model": start, "tokenizer": tokenizer, "task": Mixed()}
    for seed in range(n_seeds):
        config = replace(TOY, seed=seed, rollouts=24, eval_every=6)
        for name, says in {
            "routed": routed(teachers, is_sorting),
            "averaged": averaged(teachers),
        }.items():
            learns = functools.partial(distil, says, config, **given)
            yield name, seed, "reinforce", config, lambda f=learns: with_ends(f())
        earns = functools.partial(rewarded, config, **given)
        config = without_hyperparameters(config)
        yield "RL", seed, "grpo", config, lambda f=earns: with_ends(f())


def smollm2() -> Iterator[Job]:
    """SmolLM2 on sums, from a copy of itself that a LoRA was trained on."""
    from experiments import real
    from refimpl.pretrained.chat import Chat
    from refimpl.pretrained.loading import load
    from refimpl.pretrained.logprobs import log_probs
    from refimpl.pretrained.lora import lora

    model, tokenizer = load(real.MODEL)
    task = Chat(real.TASKS[real.TRAINED_ON](), tokenizer, real.SYSTEM)
    given = {"tokenizer": tokenizer, "task": task, "log_probs": log_probs}
    config = replace(real.GENTLE, rollouts=8, eval_every=2)
    slow = replace(config, hyperparameters={"correct": True})
    training = replace(config, rollouts=12, eval_every=12, learning_rate=2e-4)

    copied = lora(copy.deepcopy(model), r=16)
    teacher = rewarded(replace(training, seed=1000), model=copied, **given)
    yield "teacher", 0, "grpo", training, lambda: curve(teacher)
    for name, says in (("distilled", one(teacher.model)), ("told", told(model))):
        learns = functools.partial(distil, says, slow, model=model, **given)
        yield name, 0, "reinforce", slow, lambda f=learns: curve(f())
    earns = functools.partial(rewarded, config, model=model, **given)
    config = without_hyperparameters(config)
    yield "RL", 0, "grpo", config, lambda: curve(earns())


GROUPS = {"toy": toy, "worlds": worlds, "smollm2": smollm2}


@functools.cache
def begins(group: str) -> str:
    """The SHA-256 of the weights that a group's runs begin from."""
    if group == "smollm2":
        from experiments import real

        return real.weights()
    return weights_digest({"toy": rl.WarmStart(), "worlds": MIXED}[group])


def spec(group: str, arm: str, seed: int, method: str, config) -> dict[str, Any]:
    """A run's whole configuration as plain values; what names it."""
    return {
        "experiment": "distil",
        "group": group,
        "arm": arm,
        "begins": begins(group),
        "behaviour": behaviour(ALGORITHMS[method], config),
        **asdict(config) | {"seed": seed},
    }


def rows(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is stored of a run: a row per rollout, the ends in the last."""
    curves = {name: x for name, x in made.items() if isinstance(x, list)}
    length = max((len(x) for x in curves.values()), default=1)
    each = [{n: x[i] for n, x in curves.items()} | {"step": i} for i in range(length)]
    each[-1] |= {n: x for n, x in made.items() if isinstance(x, float)}
    return each


@functools.cache
def read() -> dict[str, list[dict[str, Any]]]:
    """The stored runs, by arm: curves, and ends in both worlds."""
    runs, table = store.read(STORE)
    by_run, found = dict(iter(table.groupby("run"))), defaultdict(list)
    for line in runs.sort_values("seed", kind="stable").itertuples():
        of, run = by_run[line.run], {"seed": line.seed}
        for name in CURVES:
            if (known := of[name].notna()).any():
                run[name] = of[name].astype(object).where(known, None).tolist()
        run |= {n: of[n].iloc[-1] for n in ENDS_IN if of[n].notna().any()}
        found[f"{line.group}: {line.arm}"].append(run)
    return dict(found)


def main(group: str) -> None:
    """Make what is missing, a run at a time."""
    with store.Store(STORE, ("step", *CURVES, *ENDS_IN)) as opened:
        for arm, seed, method, config, make in GROUPS[group]():
            named = spec(group, arm, seed, method, config)
            if store.key(named) in store.done(STORE):
                continue
            begun = time.perf_counter()
            made = rows(make())
            known = store.provenance() | {"weights": begins(group), "ended": ""}
            known["seconds"] = f"{time.perf_counter() - begun:.1f}"
            opened.add(named, made, known)
            print(arm, seed, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
