"""Bad input: whatever a reader hands in wrong is refused by its name, before any work.

One mechanism answers for every setting, hyperparameter and argument of a front door:
each is handed a thing of no type, and what `OUT_OF_RANGE` says that its number must not
be. The tables below hold what no type says, under the names that the error must give.
What the command line refuses is in `test_cli.py`.

Left out: an error inside a function of the reader's (its traceback shows where), and a
task whose rows change later on.
"""

import copy
import inspect
import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn, ones, tensor

import refimpl as rl
from refimpl import (
    ALGORITHMS,
    History,
    TrainConfig,
    UserError,
    WarmStart,
    checkpoint,
    loop,
)
from refimpl.algorithms import value_loss
from refimpl.cli import explanation
from refimpl.entropy import AdaptiveEntropy, ClipCov, KLCov, TopEntropy
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.hooks import Samples
from refimpl.interop import scored as bridged
from refimpl.logprobs import values
from refimpl.loss_terms import (
    KL,
    Entropy,
    LoadBalance,
    RouterShift,
    SamplerMismatch,
    Value,
)
from refimpl.models import build, check_pair, make_critic
from refimpl.options import check_fit
from refimpl.pretrained.loading import load
from refimpl.pretrained.rewards import Sum
from refimpl.rewards import overlong_punishment, score
from refimpl.samplers import Delayed, InFlight, Rounded
from refimpl.sampling import Sampler
from refimpl.tasks import Arithmetic, make_tokenizer
from refimpl.validation import annotations
from tests.worlds import (
    PROMPTS,
    SMALL,
    TOKENIZER,
    fixed_noise,
    random_model,
    random_moe,
    settings,
)

NAN, INF = math.nan, math.inf
GRPO = ALGORITHMS["grpo"]


def refused(names: str, call: Callable, *args, **given) -> None:
    """`call` ends in a `UserError` of one line that holds each of `names`."""
    with pytest.raises(UserError) as caught:
        call(*args, **given)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1000
    assert [name for name in names.split() if name not in said] == [], said


# What an argument must not be

NUMBERS = {
    (0, -1): "rollouts prompts_per_rollout group_size max_new_tokens top_k epochs "
    "max_sampling_rounds minibatches micro_batch_size max_length eval_every "
    "eval_problems eval_samples skill_steps habit_steps batch_size every "
    "n problems samples k batch",
    (-1,): "seed sampler_delay",
    (0, -0.5): "temperature router_rate learning_rate value_clip clip step most "
    "skill_learning_rate habit_learning_rate buffer epsilon epsilon_low epsilon_high "
    "mask_epsilon_low mask_epsilon_high tau_pos tau_neg",
    (-0.5,): "router_noise weight_decay entropy_bonus bonus beta target",
    (-0.5, 1.5): "overlong_share gamma lam",
    (0, -0.5, 1.5): "top_p share",
    (1, 0.5): "dual_clip",
    (0.5,): "max_ratio",
    (1, 10): "min_terms max_terms",
}
OUT_OF_RANGE = {name: bad for bad, names in NUMBERS.items() for name in names.split()}


NOTHING = object()

# The front doors, each with arguments that it takes

MODEL = random_model()
SAMPLED = rl.sample(MODEL, TOKENIZER, PROMPTS, group_size=2, max_new_tokens=6)
HISTORY = History("grpo", [{"reward": 1.0}])
WRITTEN = {"path": "h.csv"}
BATCH = {
    "logp": tensor([[-1.0, -0.5, -2.0], [-0.7, -1.2, -0.1]]),
    "old_logp": tensor([[-1.1, -0.5, -1.9], [-0.7, -1.0, -0.2]]),
    "advantages": tensor([1.0, -1.0]),
    "mask": tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
    "weight": torch.full((2, 3), 0.2),
}
OF_SAMPLER = {"logp": BATCH["logp"], "sampler_logp": BATCH["old_logp"]}
OF_SAMPLER |= {"rules": {"token_mask": 2.0}, "mask": BATCH["mask"], "advantages": None}
SCORES = {"scores": tensor([[0.0, 1.0, 0.6], [0.2, 0.1, 0.9]])}
PAIR = {"model": MODEL, "tokenizer": TOKENIZER}
RUN = {"algorithm": "grpo", "config": SMALL, **PAIR}
ASKED = {**PAIR, "problems": 4, "max_new_tokens": 4}
ANSWERS = {"prompts": ["1+2="], "completions": ["#3"]}
WORLD = {"n": 4, "seed": 0}
RAMP = {"length": tensor([4.0, 9.0]), "max_length": 12, "buffer": 4}
RATIOS = {"algorithm": "grpo", "ratios": tensor([0.6, 1.0, 2.0])}

DOORS: dict[str, tuple[Callable, dict[str, Any]]] = {
    "train": (rl.train, {**RUN, "progress": False}),
    "prepare": (rl.prepare, RUN),
    "warm_start": (rl.warm_start, {}),
    "sample": (rl.sample, {**PAIR, "prompts": PROMPTS, "max_new_tokens": 4}),
    "log_probs": (rl.log_probs, {"model": MODEL, "rollout": SAMPLED}),
    "values": (values, {"critic": make_critic(MODEL), "rollout": SAMPLED}),
    "scores": (scores, ASKED),
    "evaluate": (rl.evaluate, ASKED),
    "mean_at": (mean_at, SCORES),
    "pass_at": (pass_at, {**SCORES, "k": 2}),
    "policy_loss": (GRPO.policy_loss, BATCH),  # one code for all of them
    "factor": (rl.corrections.factor, OF_SAMPLER),
    "from_gate": (rl.from_gate, {"gate": torch.mul}),
    "curve": (rl.curve, RATIOS),
    "build": (build, {"preset": "tiny", "tokenizer": TOKENIZER}),
    "make_critic": (make_critic, {"policy": MODEL}),
    "check_pair": (check_pair, PAIR),
    "score": (score, {"reward": max, **ANSWERS, "columns": {}}),
    "overlong_punishment": (overlong_punishment, RAMP),
    "History.save": (HISTORY.save, WRITTEN),
    "History.save_samples": (HISTORY.save_samples, WRITTEN),
    "History.load": (History.load, {}),
    "a world's sample": (Arithmetic().sample, WORLD),
    "held_out": (Arithmetic().held_out, WORLD),
    "demonstrations": (Arithmetic().demonstrations, {**WORLD, "mix": (0.3, 0.4, 0.3)}),
    "correctness": (Arithmetic.reward, {**ANSWERS, "answer": [3]}),
    "load": (load, {}),
    "TrainConfig": (TrainConfig, {}),
    "WarmStart": (WarmStart, {}),
    "Arithmetic": (Arithmetic, {}),
    # What is handed to `train` is checked as its settings are
    "KL": (KL, {"beta": 0.1}),
    "Entropy": (Entropy, {"bonus": 0.1}),
    "Value": (Value, {"values": len}),
    "AdaptiveEntropy": (AdaptiveEntropy, {}),
    "KLCov": (KLCov, {}),
    "SamplerMismatch": (SamplerMismatch, {"rules": {"opsm": 0.1}}),
    "RouterShift": (RouterShift, {}),
    "TopEntropy": (TopEntropy, {}),
    "ClipCov": (ClipCov, {}),
    "Delayed": (Delayed, {"rollouts": 4}),
    "InFlight": (InFlight, {"rollouts": 4, "tokens": 8}),
    "Samples": (Samples, {}),
    "Checkpoint": (checkpoint.Checkpoint, {"folder": "no/such/folder"}),
}


def at(door: str, names: str, **changed) -> None:
    """A door with some of its good arguments changed."""
    function, good = DOORS[door]
    refused(names, function, **good | changed)


def kinds(function: Callable) -> dict[str, Any]:
    """The annotations of a door's arguments, or of a class's fields."""
    if isinstance(function, type):
        return annotations(function)
    function = scores if function is rl.evaluate else function
    given = inspect.get_annotations(inspect.unwrap(function), eval_str=True)
    return {n: given[n] for n in inspect.signature(function).parameters if n in given}


def refuses(function: Callable, good: dict, types: dict) -> None:
    """Every argument of `function` in turn, with what it must not be."""
    for name, kind in types.items():
        if kind is not Any:
            refused(name, function, **{**good, name: NOTHING})
        for value in (*OUT_OF_RANGE.get(name, ()), *["4"] * (name in OUT_OF_RANGE)):
            refused(name, function, **{**good, name: value})
        if isinstance(whole := good.get(name), torch.Tensor):
            refused(name, function, **{**good, name: whole[None]})
            refused(name, function, **{**good, name: whole * NAN})


@pytest.mark.parametrize("name", DOORS)
def test_an_argument_of_a_front_door(name):
    function, good = DOORS[name]
    refuses(function, good, kinds(function))


def configured(algorithm="grpo", **settings):
    """Settings as a run of a method takes them."""
    return check_fit(TrainConfig(**settings), ALGORITHMS[algorithm])


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_hyperparameter(algorithm):
    """By the loss, and by the settings of a run."""
    name, types = algorithm.name, algorithm.annotations
    loss = partial(algorithm.policy_loss, **BATCH)
    for call in (loss, lambda **given: configured(name, hyperparameters=given)):
        refuses(call, {}, types)
        if name not in ("gmpo", "rspo"):  # there the bound is one of log r
            for lower in {"epsilon", "epsilon_low"} & types.keys():
                refused("epsilon", call, **{lower: 1.5})


# What no type says

TOGETHER = """
prompts 7 | prompts_per_rollout=7
token_mask | token_mask=2,0.5
max_reject | max_reject=0.2
sequence_mask | sequence_mask=2,5
opsm | opsm=0.1,0.2
max_length max_new_tokens | normaliser=constant max_length=3 max_new_tokens=9
gamma critic | gamma=0.9
kl_in beta | kl_in=reward
distillation dynamic_sampling | advantage=distillation dynamic_sampling=True
int8 float64 | rollout_dtype=int8 dtype=float64
replay 'R3' | trust_sampler=True replay=R2
allow_on_policy=True | minibatches=1
"""
UNKNOWN: dict[str, dict[str, Any]] = {
    "epsilon epsilon_low": {"hyperparameters": {"epsilon": 0.1, "epsilon_low": 1}},
    "lam lam_alpha": {"algorithm": "ppo", "lam": 0.9, "lam_alpha": 0.05},
    "dynamic_sampling group_size": {
        "algorithm": "ppo",
        "group_size": 1,
        "dynamic_sampling": True,
    },
}


def test_settings_that_do_not_go_together():
    for line in TOGETHER.strip().splitlines():
        names, _, words = line.partition(" | ")
        refused(names, configured, **settings(words.split()))
    for names, given in UNKNOWN.items():
        refused(names, configured, **given)
    refused("min_terms max_terms", Arithmetic, min_terms=4, max_terms=3)
    for mix in ((0.5, 0.5), (0.9, 0.9, 0.9)):
        refused("habit_mix", Arithmetic, habit_mix=mix)
    refused("estimator 'k3' 'k4'", KL, 0.1, "k4")
    refused("low high", ClipCov, low=5.0, high=1.0)
    refused("detach=False before_clip", RouterShift, "after_clip", detach=False)
    refused("'opsm'", SamplerMismatch, {"opms": 0.1})
    refused("token_reject", SamplerMismatch, {"token_reject": 0.3})


def tokenizer(**changed):
    """Another end, or tokens that the model lacks."""
    other = make_tokenizer()
    other.add_tokens(changed.pop("more", []))
    for name, value in changed.items():
        setattr(other, name, value)
    return other


PARTS = ("sample", "held_out", "reward", "habit", "habits")


def task(**changed):
    """The arithmetic world with parts of it replaced; None: left out."""
    whole = {name: getattr(Arithmetic(), name) for name in PARTS} | changed
    return SimpleNamespace(**{k: v for k, v in whole.items() if v is not None})


def small(**changed):
    return {"config": replace(SMALL, **changed)}


def rows(value):
    """A task's function that returns these rows, whatever it is asked for."""
    return lambda *_: value


ROW = {"prompt": "1+2=", "answer": 3, "terms": 2}
BAD_ROWS = [None, [], ["1+2="], [{"answer": 3}], [{"prompt": 12}]]
BAD_ROWS += [[ROW, {"prompt": "3+4="}]]
BEFORE: dict[str, list[dict[str, Any]]] = {
    "'gropo' 'grpo'": [{"algorithm": "gropo"}],
    "causal Linear": [{"model": nn.Linear(2, 2)}],
    "model tokenizer": [{"tokenizer": None}, {"model": None}],
    "eos_token": [{"tokenizer": tokenizer(eos_token=None)}],
    "router_shift mixture": [{"algorithm": "rspo"}],
    "replay mixture": [small(replay="R2")],
    "task object": [{"task": "arithmetic"}, {"task": Arithmetic}],
    "prompt": [{"task": task(sample=lambda n, seed: [{**ROW, "prompt": ""}] * n)}],
    "task.sample(4, returned 1": [{"task": task(sample=rows([ROW]))}],
    "resume checkpoint_dir": [{"resume": True}],
}
EXPERTS = random_moe()
BEFORE |= {
    # Twice the same, in the wrong list, or without what it acts on
    "beta KL same": [small(beta=0.1) | {"loss_terms": [KL(0.1, "k2")]}],
    "entropy_bonus AdaptiveEntropy same": [
        small(entropy_bonus=0.1) | {"loss_terms": [AdaptiveEntropy()]}
    ],
    "Entropy second": [
        {"loss_terms": [Entropy(0.1), Entropy(0.1)]},
        {"loss_terms": [Entropy(0.1), AdaptiveEntropy()]},
    ],
    # Called with other arguments than it takes
    "hook f(run, step)": [{"hooks": [lambda run: None]}],
    "term f(part, reading, weight)": [{"loss_terms": [Delayed(1)]}],
    "correction f(part, reading, inputs)": [{"corrections": [lambda inputs: inputs]}],
    "advantages f(scored)": [
        {"algorithm": replace(GRPO, advantages=lambda rewards, group: rewards)}
    ],
    "log_probs f(model, rollout, temperature)": [{"log_probs": lambda m, r: None}],
    "sampler f(policy)": [{"sampler": rl.sample}],
    "corrections SamplerMismatch same": [
        small(corrections={"opsm": 0.1})
        | {"corrections": [SamplerMismatch({"opsm": 0.1})]}
    ],
    "token_truncate sampler": [
        small(trust_sampler=True)
        | {"corrections": [SamplerMismatch({"token_truncate": 2.0})]}
    ],
    "router_shift RouterShift same": [
        {"algorithm": "rspo", "model": EXPERTS, "corrections": [RouterShift()]},
    ],
    "delay another": [small(sampler_delay=1) | {"sampler": Delayed(1)}],
    "int8 Rounded": [small(rollout_dtype="int8") | {"sampler": Rounded()}],
    "InFlight float32": [
        small(rollout_dtype="bfloat16") | {"sampler": InFlight(1, tokens=9)}
    ],
    "delay rounded": [small(rollout_dtype="int8") | {"sampler": Delayed(1)}],
    "Value critic": [{"loss_terms": [Value(fixed_noise)]}],
    "KLCov update": [
        small(minibatches=1, allow_on_policy=True) | {"loss_terms": [KLCov()]}
    ],
    "AdaptiveEntropy loss_terms": [{"corrections": [AdaptiveEntropy()]}],
    "TopEntropy corrections": [{"loss_terms": [TopEntropy()]}],
    "teacher advantage='distillation'": [{"teacher": random_model()}],
    "LoadBalance experts": [{"loss_terms": [LoadBalance()]}],
    "RouterShift experts": [{"corrections": [RouterShift()]}],
    "distillation teacher": [small(advantage="distillation")],
}
BEFORE |= {f"task lacks {name}": [{"task": task(**{name: None})}] for name in PARTS}
BEFORE |= {
    f"task.{name}": [
        *({"task": task(**{name: rows(bad)})} for bad in BAD_ROWS),
        {"task": task(**{name: lambda: [ROW]})},
    ]
    for name in ("sample", "held_out")
}


def too_late(*_):
    raise AssertionError("work started")


def test_training_is_refused_before_work_starts(monkeypatch):
    monkeypatch.setattr(loop, "collect", too_late)
    for names, cases in BEFORE.items():
        for given in cases:
            at("train", names, **given)
    for part in ("advantages", "objective", "normaliser"):
        refused(part, replace, GRPO, **{part: 1})


READ = rl.log_probs


def shifted(model, rollout, temperature):
    logp, entropy = READ(model, rollout, temperature)
    return logp.roll(1, -1) * rollout.mask, entropy


def each(name, *values, **more):
    return [{name: value} | more for value in values]


HANDED_IN: dict[str, list[dict[str, Any]]] = {
    "log_probs": each(
        "log_probs",
        lambda model, rollout, temperature: None,
        # Not those of the policy: negated, exchanged, without the temperature, large
        # outside the mask, shifted by a token
        lambda *given: tuple(-x for x in READ(*given)),
        lambda *given: READ(*given)[::-1],
        lambda model, rollout, temperature: READ(model, rollout),
        shifted,
        lambda m, r, t: READ(copy.deepcopy(m), r, t),
    ),
    "sampler": each(
        "sampler", lambda policy: None, lambda policy: Sampler(random_model())
    ),
}


@pytest.mark.parametrize("names", HANDED_IN)
def test_a_function_is_tried_before_the_first_rollout(names, monkeypatch):
    monkeypatch.setattr(loop, "collect", too_late)
    warm = {**small(temperature=1.5), "reward": fixed_noise}
    for given in HANDED_IN[names]:
        at("train", names, **warm | given)


def test_what_only_the_first_rollout_can_show():
    paid = [None, 1.0, ["good"] * 16, [None] * 16, [NAN] * 16, [INF] * 16, [1.0] * 17]
    paid += [[[1.0, 2.0]] * 16]

    def raising(**_):
        raise RuntimeError("the judge\nis away")

    for pay in paid:
        at("train", "reward", reward=partial(lambda pay, **_: pay, pay))
    at("train", "raising RuntimeError", reward=raising)
    for reward in (lambda label, **_: [1.0], lambda prompts, completion_ids: [1.0]):
        at("train", "reward answer=", reward=reward)
    at("train", "component 'bad'", reward=Sum({"bad": lambda texts: 1}))
    one = torch.tensor(1.0)
    for back in (one, (one[None], {}), (one, one), None):
        term = [partial(lambda back, *_: back, back)]
        at("train", "loss term metrics", loss_terms=term)
    for change in (lambda i: i.weight, lambda i: i._replace(weight=i.weight[:, :1])):
        at("train", "correction", corrections=[lambda p, r, i, f=change: f(i)])
    paid = torch.arange(8.0)
    refused("advantages 8", bridged.advantages_of, lambda s: 1, paid, ones(8, 3), 4)


def test_sampling_and_measuring():
    for prompts in ([""], [3], "1+2=", ["1" * 200]):
        at("sample", "prompt", prompts=prompts)
    at("sample", "'a' 'b' 'ab1='", prompts=["1+2=", "ab1="])
    damaged = random_model()
    next(damaged.parameters()).data[3] = NAN
    for door in ("sample", "evaluate", "prepare"):
        at(door, "log-probs finite", model=damaged)
        for model in (nn.Linear(2, 2), make_critic(MODEL)):
            at(door, "causal language model", model=model)
    at("evaluate", "task 'arithmetic'", task="arithmetic")
    for paid in (NAN, 2.5, -1):
        pay = partial(lambda paid, completions, **_: [paid] * len(completions), paid)
        at("evaluate", str(paid), task=task(reward=pay))
        for reward in (None, fixed_noise):  # in the first rollout, not after the last
            at("train", str(paid), task=task(reward=pay), reward=reward)
    at("values", "critic make_critic", critic=MODEL)
    at("pass_at", "k 3 4", k=4)


# What a formula cannot compute, or would compute silently from something else

A, N = rl.advantages, rl.normalisers
OLD, MASK = BATCH["old_logp"], BATCH["mask"]
FOUR, PAIRS, ONES = tensor([1.0, 0.0, 1.0, 0.5]), tensor([0, 0, 1, 1]), torch.ones(4, 3)


def own(**changed):
    return lambda: replace(GRPO, **changed)


def loss(**changed):
    return lambda: GRPO.policy_loss(**BATCH | changed)


def gate(function):
    return lambda: rl.from_gate(function).policy_loss(**BATCH)


def scored(estimate=lambda given: given, **changed):
    given = {"rewards": ONES, "group": PAIRS, "mask": ONES, "values": ONES} | changed
    return lambda: estimate(rl.Scored(**given))


def critic(**changed):
    given = {"values": OLD, "old_values": OLD, "targets": OLD, "mask": MASK}
    return lambda: value_loss(**given | changed)


FORMULAS: dict[str, list[Callable]] = {
    "logp old_logp log-probs": [
        loss(old_logp=OLD.exp()),
        loss(old_logp=-OLD),
        loss(logp=OLD.exp()),
    ],
    "weight (2, 1)": [critic(weight=OLD[:, :1])],
    "targets (3,)": [critic(targets=OLD[0])],
    "old_logp swapped": [loss(old_logp=OLD.clone().requires_grad_())],
    "mask": [
        loss(mask=MASK / 2),
        scored(A.opo, mask=None),
        lambda: N.token_mean(MASK[0]),
    ],
    "advantages": [
        loss(advantages=MASK[:, 0] > 0),
        gate(lambda r, a: r if a > 0 else 1 / r),
        lambda: rl.corrections.factor(**OF_SAMPLER | {"rules": {"opsm": 0.1}}),
    ],
    "gate": [
        gate(lambda r: r),
        gate(lambda r, a: r * INF),
        gate(lambda r, a: math.exp(r)),
    ],
    "name 'ppo'": [lambda: rl.from_gate(torch.mul, "ppo")],
    "group": [
        scored(A.group_relative, group=tensor([0, 0, 0, 7])),
        lambda: N.group_token_mean(MASK, PAIRS[:2, None]),
        lambda: bridged.advantages_of(A.maxrl, FOUR, ONES, 3),
    ],
    "max_length": [lambda: N.constant(MASK, 2)],
    "ratios": [lambda: rl.curve("grpo", ratios=tensor([0.0, 1.0]))],
    "epsilon -0.2": [lambda: rl.curve("ppo", epsilon=-0.2)],
    "'GRPO' 'grpo'": [lambda: rl.get("GRPO")],
    "scored": [lambda: A.group_relative(FOUR, PAIRS)],
    "estimator": [lambda: A.with_teacher(0.5)],
    "router": [lambda: rl.moe.routed(MODEL).__enter__()],
    "13": [lambda: overlong_punishment(tensor([4.0]), max_length=12, buffer=13)],
}


@pytest.mark.parametrize("names", FORMULAS)
def test_a_formula_refuses_what_it_would_read_as_something_else(names):
    for call in FORMULAS[names]:
        refused(names, call)


def test_what_looks_odd_and_is_right():
    """A certain policy, a router's shift above 0, log-ratios beside 0, other names."""
    for logp, old in ((0, 0), (-0.01, 0.1), (2.0, 0)):
        loss(logp=logp + 0 * OLD, old_logp=old + 0 * OLD)()
    gate(lambda x, y: torch.ones_like(x))()


# Files


def small_train(folder, **given):
    given |= {"reward": fixed_noise, "progress": False}
    return rl.train("grpo", config=SMALL, **PAIR, checkpoint_dir=folder, **given)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "no file": lambda path: None,
    "prose": lambda path: path.write_text("Dear reader,\nthis is something else.\n"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_is_not_what_it_should_be(what, tmp_path):
    for name in (checkpoint.NAME, "h.csv"):
        DAMAGE[what](tmp_path / name)
    refused(checkpoint.NAME, small_train, tmp_path, resume=True)
    refused("h.csv", History.load, tmp_path / "h.csv")
    refused("model", load, tmp_path / "h.csv")


# Two settings at once: the run works, or one sentence names one of them

SETTINGS = """rollouts=1 seed=2e3 prompts_per_rollout=3 prompts_per_rollout=8
group_size=1 group_size=2 max_new_tokens=1 max_new_tokens=125 temperature=0.01
top_p=1e-9 top_k=1 top_k=99999 rolouts=2 dynamic_sampling=True max_sampling_rounds=1
overlong_share=1 overlong_filtering=True rollout_dtype=bfloat16 rollout_dtype=int8
sampler_delay=1 trust_sampler=True router_noise=0.1 token_mask=2,1 opsm=0.1
advantage=gdpo advantage=maxrl replay=R2 replay=R3 router_shift=True
minibatches=1 minibatches=3 epochs=2
micro_batch_size=1 micro_batch_size=7 optimizer=sgd optimizer=adam learning_rate=1e30
weight_decay=1e9 normaliser=constant max_length=7 max_length=100 entropy_bonus=1e20
beta=1e10 beta=0.1 kl_in=reward gamma=0 lam=0 value_clip=1e-9
eval_problems=1 eval_samples=3
dtype=bfloat16 dtype=float64 allow_on_policy=True schedule=cosine""".split()


def trained(pair: tuple[str, str]) -> None:
    given = asdict(SMALL) | {"rollouts": 1, "max_new_tokens": 8}
    config = TrainConfig(**given | settings(pair))
    rl.train("grpo", config=config, **PAIR, reward=fixed_noise, progress=False)


@pytest.mark.filterwarnings("ignore:stopped after")
def test_two_settings_at_once():
    """Each with another one."""
    order, unclear = random.Random(0).sample(SETTINGS, len(SETTINGS)), []
    for pair in zip(order[::2], order[1::2]):
        names = [text.partition("=")[0].rstrip("s") for text in pair]
        try:
            trained(pair)
        except Exception as error:  # of a run that began, if it is no UserError
            if (said := explanation(error)) is None:
                raise
            begun = not isinstance(error, UserError)
            clear = begun or any(name in said for name in names)
            unclear += [] if clear and "\n" not in said else [(pair, said)]
    assert unclear == []
