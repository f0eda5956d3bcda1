"""Distillation on the student's own samples: chapter 17, and the runs that it shows.

A run is the library's, `train(…, teacher=…)` with `advantage="distillation"`. Here are
teachers that read in a way of their own (`Teachers`), gradients over the whole
vocabulary, and the stored runs.

`python -m course.distillation.distil --groups toy` (or `worlds`, `smollm2`), from the
folder `notebooks`, makes the runs that the store `figures/data/distil` does not hold.
"""

import copy
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import tyro
from jaxtyping import Float
from torch import Tensor

import refimpl as rl
from course.kit.runs import count_rollouts
from experiments.experiment import Experiment, Job
from experiments.sorting import Sorting
from refimpl.algorithms import ALGORITHMS
from refimpl.kl import divergence
from refimpl.logprobs import response_logits
from refimpl.rollout import Rollout, pad_columns
from refimpl.tasks import Arithmetic, Mix
from refimpl.tasks.arithmetic import HabitWorld, correctness
from refimpl.validation import checked

CURVES, ENDS_IN = ("tokens", "reward", "accuracy", "kl"), ("sums", "rows")
"""Columns by rollout, and at the end: accuracy in two worlds."""
TOY = rl.TrainConfig(
    rollouts=20, learning_rate=4e-4, eval_every=2, hyperparameters={"correct": True}
)
"""REINFORCE with the token's ratio: Tinker's `importance_sampling` loss.

MOPD (2601.02780, 2606.30406) is this with `corrections={"token_mask": (low, high)}`: a
token's Â = sg[log π_T − log π_old] is multiplied by w = π_old/μ, or by 0 where w is
outside the band. (There it is π_θ in both. Here the ratio makes w to π_θ/μ, but gate
and Â stay what they were at the rollout's first update.)"""


COUNTED: dict[str, Any] = {"progress": False, "hooks": [count_rollouts]}
"""What a run is given besides: its rollouts are counted in a chapter's bar."""


def distil(teacher, config=TOY, **given) -> rl.History:
    """Train a student on log π_T − log π_old of its own tokens.

    `teacher_kl` in its history is the mean of log π_old − log π_T over a rollout.
    """
    config = replace(config, advantage="distillation")
    given |= {"config": config, "teacher": teacher}
    return rl.train("reinforce", **COUNTED | given)


@torch.no_grad()
def distributions(model, rollout: Rollout) -> Float[Tensor, "B T V"]:
    """Log-probs of the whole vocabulary at each response token, at temperature 1."""
    return response_logits(model, rollout).double().log_softmax(-1)


def push(own: Tensor, advantage: Tensor) -> Tensor:
    """What a sampled token is expected to add to each logit: Σ_a π_a Â_a (1_a − π),
    from log-probs and advantages of the whole vocabulary, (…, V)."""
    pi = own.exp()
    return pi * (advantage - (pi * advantage).sum(-1, keepdim=True))


def spread(own: Tensor, advantage: Tensor) -> Tensor:
    """Return the variance of one token's gradient, summed over the logits, (…)."""
    pi = own.exp()
    square = 1 - 2 * pi + (pi**2).sum(-1, keepdim=True)  # |1_a − π|²
    second = (pi * advantage**2 * square).sum(-1)
    return second - (push(own, advantage) ** 2).sum(-1)


def top(own: Tensor, other: Tensor, k: int, tail: bool = False) -> Tensor:
    """The descent of the library's top-k divergence, in the logits."""
    logits = own.detach().clone().requires_grad_()
    loss = divergence(logits.log_softmax(-1), other, top_k=k, tail=tail).sum()
    return -torch.autograd.grad(loss, logits)[0]


class Teachers(torch.nn.ModuleList):
    """Models that are handed to `train` as one teacher, and read as `read_by` says."""

    def get_input_embeddings(self):
        return self[0].get_input_embeddings()

    def get_output_embeddings(self):
        return self[0].get_output_embeddings()

    @property
    def device(self):
        return self[0].device


def read_by(read: Callable, log_probs: Callable = rl.log_probs) -> Callable:
    """Make a `log_probs` for `train`: `read` for `Teachers`, and the usual for others.

    `read` takes the log-probs of each teacher, as a function of the rollout, and the
    rollout.
    """

    @functools.wraps(log_probs)
    def reading(model, rollout, temperature=1.0):
        if not isinstance(model, Teachers):
            return log_probs(model, rollout, temperature)
        each = [functools.partial(log_probs, one) for one in model]
        return read([lambda x, f=f: f(x, temperature) for f in each], rollout)

    return reading


def prompts_of(tokenizer, rollout: Rollout) -> list[str]:
    """Decode the prompt of every answer."""
    rows = zip(rollout.ids, rollout.prompt_length.tolist())
    plain = {"clean_up_tokenization_spaces": False}
    return [tokenizer.decode(ids[:n], **plain) for ids, n in rows]


def routed(tokenizer, choose: Callable[[str], int]) -> Callable:
    """Let each prompt be read by its own teacher."""

    def read(teachers, rollout):
        own = [choose(prompt) for prompt in prompts_of(tokenizer, rollout)]
        each = zip(*(teacher(rollout) for teacher in teachers))
        return tuple(torch.stack(x)[own, torch.arange(len(own))] for x in each)

    return read_by(read)


def averaged() -> Callable:
    """Average the log-probs of all teachers for every prompt."""

    def read(teachers, rollout):
        each = zip(*(teacher(rollout) for teacher in teachers))
        return tuple(sum(x) / len(teachers) for x in each)

    return read_by(read)


def answers(prompts: list[str], rollout: Rollout, texts: list[str]) -> list[str]:
    """The hint of every row: the sum of its prompt's numbers."""
    return [str(sum(map(int, re.findall(r"\d+", prompt)))) for prompt in prompts]


def siblings(right: Callable[[str, str], bool]) -> Callable:
    """Make the hint of every row the first right answer of another in its group (SDPO).

    `right(prompt, text)` is a verifier. A row without such a sibling gets no hint, "".
    Rows are read in micro-batches, so `micro_batch_size` must not cut groups apart.
    """

    def hints(prompts: list[str], rollout: Rollout, texts: list[str]) -> list[str]:
        good = [i for i, pair in enumerate(zip(prompts, texts)) if right(*pair)]
        group = rollout.group.tolist()
        mine = (
            [j for j in good if j != i and group[j] == g] for i, g in enumerate(group)
        )
        return [texts[rows[0]] if rows else "" for rows in mine]

    return hints


def told(tokenizer, log_probs: Callable = rl.log_probs, hints=answers) -> Callable:
    """Let a teacher read a hint in the prompt, which the student does not.

    This is self-distillation if the teacher is the student as it was at first.
    """

    def read(teachers, rollout):
        prompts = prompts_of(tokenizer, rollout)
        given = hints(prompts, rollout, rollout.texts(tokenizer))
        prompts = [hint(*pair) if pair[1] else pair[0] for pair in zip(prompts, given)]
        both = teachers[0](asked(tokenizer, rollout, prompts))
        return tuple(pad_columns(x, rollout.mask.shape[1]) for x in both)

    return read_by(read, log_probs)


ENDS = "<|im_end|>\n<|im_start|>assistant"
"""The text between a question and its answer in SmolLM2's chat template."""


def hint(prompt: str, answer: str) -> str:
    """Put an answer into a prompt."""
    before, end, after = prompt.rpartition(ENDS)
    return f"{before} (The answer is {answer}.){end}{after}"


def asked(tokenizer, rollout: Rollout, prompts: list[str]) -> Rollout:
    """Put the same responses after other prompts."""
    starts = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    rows = []
    for i, start in enumerate(starts):
        first = int(rollout.prompt_length[i])
        answer = rollout.ids[i, first : first + int(rollout.span[i])]
        rows.append(torch.cat([torch.tensor(start), answer]))
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(start) for start in starts])
    return replace(rollout, ids=ids, prompt_length=lengths)


def curve(history: rl.History) -> dict[str, list]:
    """Columns that are stored of a run, by rollout."""
    size = history.rows[0]["num_samples"]
    return {
        "tokens": [length * size for length in history["completions/mean_length"]],
        "reward": history["reward"],
        "accuracy": [None if x != x else x for x in history["accuracy"]],
        "kl": history["teacher_kl"] if "teacher_kl" in history.columns else None,
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
    """Tell which of the two worlds a prompt is from."""
    return int("+" not in prompt)


def teaching(rollouts: int) -> rl.TrainConfig:
    """Settings of a teacher's run."""
    return rl.TrainConfig(rollouts=rollouts, seed=1000, eval_every=rollouts)


def best(start, tokenizer, task=None, rollouts: int = 60, **given) -> rl.History:
    """Train a teacher with GRPO on a task, from a start."""
    given |= {"model": start, "tokenizer": tokenizer, "task": task}
    return rewarded(teaching(rollouts), **given)


def rewarded(config, **given) -> rl.History:
    """GRPO with the same rollouts and learning rate."""
    config = replace(config, hyperparameters={})
    return rl.train("grpo", config=config, **COUNTED | given)


def paid_for(own: int) -> Callable:
    """Right answers in one world, and in the other an answer without steps."""

    def reward(prompts, completions, *, answer, **columns) -> list[float]:
        right = correctness(prompts, completions, answer=answer)
        rows = zip(prompts, completions, right)
        return [r if is_sorting(p) == own else float(c[:1] == "#") for p, c, r in rows]

    return reward


SEEDS = {
    "toy": {"teacher": 1, "distilled": 5, "RL": 5},
    "worlds": {
        **dict.fromkeys(("start", "RL on sums alone", "RL on rows alone"), 1),
        **dict.fromkeys(("teacher of sums", "teacher of rows"), 1),
        **dict.fromkeys(("routed", "averaged", "RL"), 3),
    },
    "smollm2": dict.fromkeys(("teacher", "distilled", "told", "RL"), 1),
}
"""The number of seeds of each arm. In `toy` a teacher and its students begin from the
shipped start. In `worlds` two teachers, one per world, begin from a start that knows
both a little. In `smollm2` the teacher is the model with a LoRA."""
STUDENTS = ("distilled", "routed", "averaged", "told")
LEARNERS = (*STUDENTS, "RL")


class Distil(Experiment):
    """Teachers, students of theirs, and RL with as many rollouts."""

    name = "distil"
    columns = ("step", *CURVES, *ENDS_IN)

    def jobs(self):
        for group, arms in SEEDS.items():
            for arm, seeds in arms.items():
                for seed in range(seeds):
                    yield {"group": group, "arm": arm, "seed": seed}

    def config(self, job):
        group, arm, seed = job["group"], job["arm"], job["seed"]
        config = replace(TOY, seed=seed)
        if group == "worlds":
            config = replace(config, rollouts=24, eval_every=6)
        if group == "smollm2":
            from experiments.real import GENTLE

            config = replace(GENTLE, rollouts=8, eval_every=2)
            config = replace(config, hyperparameters=TOY.hyperparameters)
            if arm == "teacher":
                many: dict = {"rollouts": 12, "eval_every": 12, "learning_rate": 2e-4}
                config = replace(config, seed=1000, **many)
        elif arm not in LEARNERS:
            config = teaching(60 if group == "toy" else 40)
        return config if arm in STUDENTS else replace(config, hyperparameters={})

    def method(self, job):
        return ALGORITHMS["reinforce" if job["arm"] in STUDENTS else "grpo"]

    def warm(self, job):
        return MIXED if job["group"] == "worlds" else rl.WarmStart()

    def weights(self, job):
        if job["group"] == "smollm2":
            from experiments import real

            return real.RUNS.weights(job)
        return super().weights(job)

    def spec(self, job):
        return super().spec(job) | {"seed": job["seed"]}  # a teacher's is 0

    def given(self, job):
        if job["group"] == "smollm2":
            from experiments import real
            from refimpl.pretrained.chat import Chat
            from refimpl.pretrained.loading import load
            from refimpl.pretrained.logprobs import log_probs

            model, tokenizer = load(real.MODEL)
            task = Chat(real.TASKS[real.TRAINED_ON](), tokenizer, real.SYSTEM)
            given = {"model": model, "tokenizer": tokenizer, "log_probs": log_probs}
        else:
            given = super().given(job)
            task = Mixed() if job["group"] == "worlds" else given["task"]
            given |= {"log_probs": rl.log_probs}
        return given | {"task": task, "config": self.config(job)}

    def make(self, job):
        """Train, and measure both worlds at the end."""
        given = self.given(job)
        given.pop("algorithm", None)
        model, tokenizer, arm = given["model"], given["tokenizer"], job["arm"]
        made: dict[str, Any] = {}
        if arm in STUDENTS:
            teacher, reading = taught_by(job, given)
            history = distil(teacher, **given | {"log_probs": reading})
        elif arm == "RL":
            history = rewarded(**given)
        elif arm != "start":
            history = teachers(job["group"], arm)
        if arm in LEARNERS or arm == "teacher":
            made = curve(history)
        if job["group"] == "worlds":
            model = model if arm == "start" else history.model
            made |= {
                name: rl.evaluate(model, tokenizer, task, problems=512)
                for name, task in zip(ENDS_IN, Mixed.worlds)
            }
        return rl.History("grpo", rows(made))


RUNS = Distil()


@functools.cache
def teachers(group: str, arm: str) -> rl.History:
    """The run of a teacher, or of RL on one world alone."""
    given = RUNS.given({"group": group, "arm": arm, "seed": 0})
    given.pop("algorithm", None)
    if group == "smollm2":
        from refimpl.pretrained.lora import lora

        given["model"] = lora(copy.deepcopy(given["model"]), r=16)
    if group == "worlds":
        world = [name in arm for name in ENDS_IN].index(True)
        if arm.startswith("teacher"):
            given["reward"] = paid_for(world)
        else:
            given["task"] = Mixed.worlds[world]
    return rewarded(**given)


def taught_by(job: Job, given: Mapping[str, Any]) -> tuple[Any, Callable]:
    """Return a student's `teacher` and `log_probs` for `train`."""
    group, arm, tokenizer = job["group"], job["arm"], given["tokenizer"]
    if arm == "told":
        return Teachers([given["model"]]), told(tokenizer, given["log_probs"])
    if arm == "distilled":
        return teachers(group, "teacher").model, given["log_probs"]
    both = Teachers([teachers(group, f"teacher of {one}").model for one in ENDS_IN])
    return both, routed(tokenizer, is_sorting) if arm == "routed" else averaged()


def rows(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is stored of a run: a row per rollout, final values in the last."""
    curves = {name: x for name, x in made.items() if isinstance(x, list)}
    length = max((len(x) for x in curves.values()), default=1)
    each = [{n: x[i] for n, x in curves.items()} | {"step": i} for i in range(length)]
    each[-1] |= {n: x for n, x in made.items() if isinstance(x, float)}
    return each


@functools.cache
def read() -> dict[str, list[dict[str, Any]]]:
    """The stored runs, by arm: curves, and ends in both worlds."""
    table, found = RUNS.table("group", "arm", "seed"), defaultdict(list)
    for (group, arm, _), rows in table.groupby(["group", "arm", "seed"]):
        known = rows.dropna(axis="columns", how="all")
        plain = known.astype(object).where(known.notna(), None).to_dict("list")
        run = {name: plain[name] for name in CURVES if name in plain}
        run |= {name: plain[name][-1] for name in ENDS_IN if name in plain}
        found[f"{group}: {arm}"].append(run)
    return dict(found)


def main(groups: tuple[str, ...] = tuple(SEEDS)) -> None:
    """Make the missing runs, one at a time."""
    RUNS.fill(jobs=[job for job in RUNS.jobs() if job["group"] in groups])


if __name__ == "__main__":
    tyro.cli(main)
