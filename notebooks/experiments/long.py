"""`python -m experiments long`: hundreds of updates on SmolLM2, declared beforehand.

**The question.** Chapter 13's runs end after two dozen rollouts, while the reward still
rises. What do 150 rollouts with two updates each do to a pretrained model? Does it
learn the task, or only the form of an answer? Does the method matter?

**The task** is one of three from reasoning-gym (`TASKS`), chosen by sixteen rollouts of
GRPO each. These pilots have a seed and a store of their own and are never judged. A
task can be chosen if its mean@8 before training lies between 0.03 and 0.35, its pass@8
is at least twice that, and the pilot raises its held-out mean@8. Of several we take the
one that leaves most room, with the highest pass@8 minus mean@8.

Earlier pilots in the same store had larger rollouts, which took too long on a shared
machine. In the first ones prompts stood in the chat template, and answers had twelve
tokens. There the limit gave false rewards: an answer that only repeats `1 and 17` of a
problem is cut off at the right number. So the bare question is asked, to which the
model answers with a number.

**The runs.** SmolLM2-135M-Instruct, a LoRA of rank 16 on queries and values, two
problems with eight answers of at most six tokens per rollout, one group per update.
GRPO, SAPO as published (τ = 1 and 1.05) and the one-sided gate (τ = 8.8), three seeds
each. A seed draws problems, answers and shuffles. Runs of one seed share their first
rollout.

**The outcomes**, from 32 held-out problems with eight answers each, before the first
update and after 50, 100 and 150 rollouts (the same problems each time):

- *learns on*: mean@8 after 150 rollouts minus mean@8 after 50, for each method;
- *can do more*: pass@8 after 150 rollouts minus pass@8 before, for each method;
- *the method*: the area (mean reward of all rollouts) of SAPO and of the one-sided gate
  minus GRPO's, by seed.

An effect is a mean over seeds with Student's t, and 0.03 matters. For a single seed it
has no interval, and nothing is judged.

**What would refute what the course says.** With two updates per rollout the course
expects no gate to matter: an area that differs from GRPO's by more than 0.03, interval
and all, refutes that. A pass@8 that falls by more than 0.03 would say that training
only makes the model repeat itself.

**The order** is seed by seed, all three methods of a seed before the next seed, so that
an early end costs seeds and not comparisons. A run that is stopped or killed is resumed
from its last checkpoint, at most five rollouts earlier.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from experiments import store
from experiments.arms import ARMS, check_known
from experiments.effects import verdict
from experiments.experiment import Job, trained
from experiments.real import JUDGED, MODEL, Real
from experiments.statistics import Estimate, estimate
from refimpl import seeds
from refimpl.algorithms import Algorithm
from refimpl.checkpoint import NAME, Checkpoint
from refimpl.config import TrainConfig
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.files import write
from refimpl.history import History
from refimpl.hooks import Bar
from refimpl.pretrained import fast
from refimpl.pretrained.gym import ReasoningGym
from refimpl.pretrained.loading import load
from refimpl.pretrained.logprobs import log_probs
from refimpl.pretrained.lora import lora
from refimpl.pretrained.packaged import resolve
from refimpl.run import Run
from refimpl.sampling import sample
from refimpl.sft import digest
from refimpl.validation import Count, guarded

METHODS = ("GRPO", "SAPO 1.0", "one-sided 8.8")
SEEDS, SMALLEST = 3, 0.03


def _sums(terms: int, digits: int) -> ReasoningGym:
    asked = {"min_terms": terms, "max_terms": terms}
    asked |= {"min_digits": digits, "max_digits": digits}
    return ReasoningGym("chain_sum", **JUDGED, **asked)


TASKS: dict[str, Callable[[], ReasoningGym]] = {
    "two digits": partial(_sums, 2, 2),
    "three digits": partial(_sums, 2, 3),
    "three terms": partial(_sums, 3, 1),
}
"""Sums and differences: two numbers of two or of three digits, or three of one."""
CHOSEN = "two digits"
"""The task of the judged runs. Its pilot went from 0.18 (pass@8: 0.56) to 0.34, three
digits from 0.03 (0.09) to 0.04, and three terms from 0.07 (0.31) to 0.07."""
CONFIG = TrainConfig(
    rollouts=150,
    prompts_per_rollout=2,
    group_size=8,
    max_new_tokens=6,
    minibatches=2,
    micro_batch_size=8,
    learning_rate=5e-4,
    eval_every=50,
    eval_problems=32,
    eval_samples=8,
    dynamic_sampling=False,
    overlong_share=0.0,
)
SHOWN = 4
"""Held-out problems whose most likely answers are kept."""
ADAPTED = {"r": 16, "target_modules": "q_proj,v_proj"}
CHECKPOINTS = store.DATA.parents[1] / "runs"


class Answers:
    """A hook that keeps greedy answers to a few held-out problems."""

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """Ask before the first update, unless the run is resumed."""
        if not run.history.rows:
            self.ask(run, 0)
        yield

    def __call__(self, run: Run, step: int) -> None:
        if (step + 1) % run.config.eval_every == 0 or run.last(step):
            self.ask(run, step + 1)

    def ask(self, run: Run, rollouts: int) -> None:
        rows = run.task.held_out(SHOWN)
        prompts = [row["prompt"] for row in rows]
        settings = run.config.sampling | {"top_k": 1}
        drawn = sample(run.model, run.tokenizer, prompts, group_size=1, **settings)
        for row, text in zip(rows, drawn.texts(run.tokenizer), strict=True):
            asked = {"problem": row["prompt"], "right": row["answer"]}
            run.history.samples.append({"rollouts": rollouts, **asked, "answer": text})


class Long(Real):
    """A run per method and seed. `changed` settings make it shorter."""

    name = "long"
    columns = (
        *"step reward entropy completions/mean_length".split(),
        *"completions/clipped_ratio frac_reward_zero_std grad_norm".split(),
        *"clip_ratio/region_mean log_ratio/q01 log_ratio/q99".split(),
        *"ratio/max_deviation accuracy accuracy/pass before before/pass".split(),
        "step_time",
    )

    def __init__(self, out: str | Path | None = None, **changed: Any):
        self.out, self.changed = Path(out or store.DATA / self.name), changed
        self.begins: dict[str, dict[str, float]] = {}

    @property
    def path(self) -> Path:
        return self.out

    def jobs(self) -> Iterator[Job]:
        for seed in range(SEEDS):
            for arm in METHODS:
                yield {"task": CHOSEN, "arm": arm, "seed": seed}

    def config(self, job: Job) -> TrainConfig:
        _, settings = ARMS[job["arm"]].build()
        return replace(CONFIG, **settings, seed=job["seed"], **self.changed)

    def method(self, job: Job) -> Algorithm:
        return ARMS[job["arm"]].build()[0]

    def weights(self, job: Job) -> str:
        return _weights()

    def facets(self, job: Job) -> dict[str, Any]:
        known = {
            "problems": repr(TASKS[job["task"]]()),
            "model": MODEL,
            "lora": ADAPTED,
        }
        return job | known | {"chat": False, "begins": self.weights(job)}

    def given(self, job: Job) -> dict[str, Any]:
        fast.use()
        model, tokenizer = load(MODEL)
        task = TASKS[job["task"]]()
        named = {"algorithm": self.method(job), "config": self.config(job)}
        named |= {"model": lora(model, **ADAPTED), "tokenizer": tokenizer, "task": task}
        return named | {"log_probs": log_probs}

    def make(self, job: Job) -> History:
        """Train, or resume from the checkpoint; keep the answers next to the store."""
        given = self.given(job)
        folder = CHECKPOINTS / self.out.name / " ".join(map(str, job.values()))
        saved = Checkpoint(folder, resume=(folder / NAME).exists(), every=5)
        begin = self.before(given)
        history = trained(**given, hooks=[Answers(), saved, Bar()])
        if isinstance(history.ended, KeyboardInterrupt):
            raise history.ended  # a signal: the run is resumed later
        history.rows[0] |= begin
        told = answers(self.out) | {self.key(job): history.samples}
        write(f"{self.out}.answers.json", json.dumps(told, indent=1) + "\n")
        return history

    def before(self, given: dict[str, Any]) -> dict[str, float]:
        """Measure mean@k and pass@k before training, once per task and process."""
        task, config = given["task"], given["config"]
        if repr(task) not in self.begins:
            asked = {"problems": config.eval_problems, "samples": config.eval_samples}
            asked |= config.sampling
            found = scores(given["model"], given["tokenizer"], task, **asked)
            means = {"before": mean_at(found)}
            means["before/pass"] = pass_at(found, config.eval_samples)
            self.begins[repr(task)] = means
        return self.begins[repr(task)]


class Pilot(Long):
    """Sixteen rollouts of GRPO on each task, to choose one."""

    name = "long_pilot"

    def __init__(self, out: str | Path | None = None):
        super().__init__(out, rollouts=16, eval_every=16)

    def jobs(self) -> Iterator[Job]:
        for task in TASKS:
            yield {"task": task, "arm": "GRPO", "seed": 100}


@functools.cache
def _weights() -> str:
    return digest(Path(resolve(MODEL)) / "model.safetensors")


def answers(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Return the answers that `Answers` kept, by the keys of their runs."""
    file = Path(f"{path}.answers.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def moments(path: str | Path) -> pd.DataFrame:
    """Return mean@k and pass@k of each stored run, at 0 rollouts and later.

    `minutes` are those of its rollouts and updates, also of a run that was resumed.
    """
    runs, rows = store.read(path)
    minutes = rows.groupby("run")["step_time"].sum() / 60
    runs = runs.assign(minutes=runs["run"].map(minutes).round(1))
    names = {"before": "mean", "before/pass": "pass"}
    first = rows[rows["step"] == 0].rename(columns=names).assign(rollouts=0)
    names = {"accuracy": "mean", "accuracy/pass": "pass"}
    later = rows.dropna(subset="accuracy").rename(columns=names)
    later["rollouts"] = later["step"].astype(int) + 1
    both = pd.concat([first, later])[["run", "rollouts", "mean", "pass"]]
    return runs[["run", "task", "arm", "seed", "minutes"]].merge(both, on="run")


def whole(path: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs and rows of the seeds that have all three methods."""
    runs, rows = store.read(path)
    runs = runs[runs.groupby("seed")["arm"].transform("nunique") == len(METHODS)]
    return runs, rows[rows["run"].isin(runs["run"])]


def effects(path: str | Path) -> dict[str, Estimate]:
    """Estimate the declared outcomes over the seeds that have all three methods."""
    runs, rows = whole(path)
    areas = rows.groupby("run")["reward"].sum()[runs["run"]].values / runs["rollouts"]
    area = areas.set_axis(pd.MultiIndex.from_frame(runs[["arm", "seed"]]))
    at = moments(path).query("run in @runs.run")
    at = at.set_index(["arm", "seed", "rollouts"])[["mean", "pass"]]
    times = sorted(set(at.index.get_level_values("rollouts")))
    found = {}
    for arm in METHODS if len(runs) else ():
        own = at.loc[arm].swaplevel()
        found[f"{arm} learns on"] = (
            own.loc[times[-1], "mean"] - own.loc[times[1], "mean"]
        )
        found[f"{arm} can do more"] = own.loc[times[-1], "pass"] - own.loc[0, "pass"]
        if arm != METHODS[0]:
            found[f"{arm}, area, minus GRPO"] = area[arm] - area[METHODS[0]]
    return {n: estimate({s: [x] for s, x in each.items()}) for n, each in found.items()}


def report(path: str | Path) -> str:
    """Format accuracies by run, then the declared outcomes."""
    table = moments(path)
    shown = table.drop(columns="run").pivot_table(
        index=["task", "seed", "arm", "minutes"],
        columns="rollouts",
        values=["mean", "pass"],
        sort=False,
    )
    lines = [
        [name, found.effect, found.low, found.high, found.starts, judged(found)]
        for name, found in effects(path).items()
    ]
    heads = ["outcome", "effect", "low", "high", "seeds", "verdict"]
    return f"{shown.round(3).to_string()}\n\n{tabulate(lines, heads, floatfmt='.3f')}"


def by_kind(path: str | Path) -> dict[str, list[float]]:
    """Return each method's mean reward after the first 50 rollouts, by its problems.

    These are two sums, a sum and a difference, or two differences. The problems of a
    rollout follow from the run's seed. Only whole seeds count.
    """
    runs, rows = whole(path)
    task, size = TASKS[CHOSEN](), CONFIG.prompts_per_rollout

    @functools.cache
    def differences(seed: int, step: int) -> int:
        problems = task.sample(size, seeds.seed_for(seed, step, "q"))
        return sum("+" not in problem["prompt"] for problem in problems)

    late = rows[rows["step"] >= CONFIG.eval_every]
    late = late.merge(runs[["run", "arm", "seed"]], on="run")
    pairs = zip(late["seed"].astype(int), late["step"].astype(int))
    late["kind"] = [differences(*pair) for pair in pairs]
    found = late.groupby(["arm", "kind"], sort=False)["reward"].mean()
    arms = dict.fromkeys(late["arm"])
    kinds = range(size + 1)
    return {arm: [float(found[arm, kind]) for kind in kinds] for arm in arms}


def judged(found: Estimate) -> str:
    """Return the verdict on "it is higher", or say that there are too few seeds."""
    return verdict(found, SMALLEST) if found.known else "too few seeds"


def repeated(path: str | Path, declared: str | Path) -> str:
    """Say how long each run of `path` is equal to the stored one of its settings."""
    named, lines = ["task", "arm", "seed"], []
    tables = [store.read(store_path) for store_path in (path, declared)]
    own, theirs = (rows.merge(runs[["run", *named]], on="run") for runs, rows in tables)
    there = dict([*theirs.groupby(named)])
    for job, here in own.groupby(named, sort=False):
        if job in there:
            both = list(zip(here["reward"], there[job]["reward"]))
            same = next((n for n, (a, b) in enumerate(both) if a != b), len(both))
            means = [sum(x) / len(both) for x in zip(*both)]
            lines.append([*job, len(both), same, *means])
    heads = [*named, "rollouts", "equal", "mean reward", "of the stored run"]
    return tabulate(lines, heads, floatfmt=".3f")


@guarded
def long(
    methods: tuple[str, ...] = METHODS,
    seeds: Count = SEEDS,
    rollouts: Count = CONFIG.rollouts,
    pilot: bool = False,
    out: Path | None = None,
) -> None:
    """Train SmolLM2 for hundreds of updates; stop at any time, and go on later.

    Needs the model of `python -m refimpl fetch smollm2`.

    Args:
        methods: some of GRPO, "SAPO 1.0" and "one-sided 8.8".
        seeds: runs per method.
        rollouts: length of a run.
        pilot: make the pilots that chose the task.
        out: path and name of the store: OUT.runs.csv.xz, OUT.rows.csv.xz and
            OUT.answers.json. Runs in it are not made again. Default: that of the
            declared runs.
    """
    check_known("method", methods, METHODS)
    runs = Pilot(out) if pilot else Long(out, rollouts=rollouts)
    jobs = [*runs.jobs()]
    if not pilot:
        jobs = [job for job in jobs if job["arm"] in methods and job["seed"] < seeds]
    runs.fill(jobs=jobs)
    print(report(runs.path))
    declared = Long().path
    if not pilot and runs.path != declared:
        print(repeated(runs.path, declared))
