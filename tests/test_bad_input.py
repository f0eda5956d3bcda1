"""Bad input: whatever a reader hands in wrong gets one clear sentence, before any work.

One mechanism answers for every setting, hyperparameter and argument of a front door:
each is handed a thing of no type, and what `OUT_OF_RANGE` says that its number must not
be. What a type does not allow is asked of one setting of each type. The other rows are
written out. Those of the command line are in `test_cli.py`.

Left out: an error inside a function of the reader's (its traceback shows where), and a
task whose rows change later on.
"""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch import nn, tensor

import refimpl as rl
from experiments import grid
from refimpl import (
    ALGORITHMS,
    History,
    TrainConfig,
    UserError,
    WarmStart,
    checkpoint,
    loop,
)
from refimpl.cli import explanation, parse_settings
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.interop import scored as bridged
from refimpl.logprobs import values
from refimpl.models import build, check_pair, make_critic, pick_device
from refimpl.options import check_fit
from refimpl.pretrained.loading import load
from refimpl.pretrained.rewards import Sum
from refimpl.rewards import overlong_punishment, score
from refimpl.tasks import Arithmetic, Sorting, make_tokenizer, verify
from refimpl.validation import annotations
from tests.worlds import PROMPTS, SMALL, TOKENIZER, fixed_noise, random_model

NAN, INF = math.nan, math.inf


def refused(words: str, call: Callable, *args, **given) -> None:
    """`call` ends in one sentence of ours that holds the parts of `words`."""
    with pytest.raises(UserError) as caught:
        call(*args, **given)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1000
    assert [part for part in words.split(" … ") if part not in said] == [], said


# What an argument must not be

NUMBERS = {
    (0, -1): "rollouts prompts_per_rollout group_size max_new_tokens top_k epochs "
    "max_sampling_rounds minibatches micro_batch_size max_length eval_every "
    "eval_problems eval_samples checkpoint_every skill_steps habit_steps batch_size "
    "n problems samples k batch",
    (-1,): "seed sampler_delay samples_every",
    (0, -0.5): "temperature router_rate learning_rate value_clip "
    "skill_learning_rate habit_learning_rate buffer epsilon epsilon_low epsilon_high "
    "mask_epsilon_low mask_epsilon_high tau_pos tau_neg",
    (-0.5,): "router_noise weight_decay entropy_bonus beta",
    (-0.5, 1.5): "overlong_share gamma lam",
    (0, -0.5, 1.5): "top_p",
    (1, 0.5): "dual_clip",
    (0.5,): "max_ratio",
    (1, 10): "min_terms max_terms",
    (1, 9): "min_items max_items",
}
OUT_OF_RANGE = {name: bad for bad, names in NUMBERS.items() for name in names.split()}


NOTHING = object()

TYPES = {
    "rollouts": (1.5, True, "3", None, NAN, [1], np.ones(2)),
    "learning_rate": ("0.1", True, None, NAN, INF, -INF, [1.0]),
    "overlong_filtering": (1, "yes", None),
    "optimizer": ("adamm", 1, None),
    "device": (1, None),
    "hyperparameters": ([1], "epsilon", None),
}
"""Of a setting of each type: what the type does not allow."""


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
    "policy_loss": (ALGORITHMS["grpo"].policy_loss, BATCH),  # one code for all of them
    "from_gate": (rl.from_gate, {"gate": torch.mul}),
    "curve": (rl.curve, RATIOS),
    "build": (build, {"preset": "tiny", "tokenizer": TOKENIZER}),
    "make_critic": (make_critic, {"policy": MODEL}),
    "check_pair": (check_pair, PAIR),
    "score": (score, {"reward": max, **ANSWERS, "columns": {}}),
    "overlong_punishment": (overlong_punishment, RAMP),
    "reached": (HISTORY.reached, {"level": 0.9, "name": "reward"}),
    "History.save": (HISTORY.save, WRITTEN),
    "History.save_samples": (HISTORY.save_samples, WRITTEN),
    "History.load": (History.load, {}),
    "a world's sample": (Arithmetic().sample, WORLD),
    "held_out": (Arithmetic().held_out, WORLD),
    "demonstrations": (Arithmetic().demonstrations, {**WORLD, "mix": (0.3, 0.4, 0.3)}),
    "correctness": (Arithmetic.reward, {**ANSWERS, "answer": [3]}),
    "sortedness": (Sorting.reward, {**ANSWERS, "answer": ["3"]}),
    "load": (load, {}),
    "TrainConfig": (TrainConfig, {}),
    "WarmStart": (WarmStart, {}),
    "Arithmetic": (Arithmetic, {}),
    "Sorting": (Sorting, {}),
}


def at(door: str, words: str, **changed) -> None:
    """A door with some of its good arguments changed."""
    function, good = DOORS[door]
    refused(words, function, **good | changed)


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
            refused(f"{name} must ", function, **{**good, name: NOTHING})
        for value in OUT_OF_RANGE.get(name, ()):
            refused(f"{name} must … got ", function, **{**good, name: value})
        if isinstance(whole := good.get(name), torch.Tensor):
            words = f"{name} must be of type … of shape"
            refused(words, function, **{**good, name: whole[None]})
            refused(f"{name} ", function, **{**good, name: whole * NAN})


@pytest.mark.parametrize("name", DOORS)
def test_an_argument_of_a_front_door(name):
    function, good = DOORS[name]
    refuses(function, good, kinds(function))


@pytest.mark.parametrize("name", TYPES)
def test_a_setting_of_another_type(name):
    for value in TYPES[name]:
        refused(f"{name} must ", TrainConfig, **{name: value})


def test_a_tensor_of_another_kind():
    mask, advantages = BATCH["mask"], BATCH["advantages"]
    for words, name, value in (
        ("mask must hold only 0 and 1", "mask", mask / 2),
        ("of shape (4,), beside logp (2, 3)", "advantages", advantages.repeat(2)),
        ("advantages must be of type … got [1", "advantages", [1.0, -1.0]),
        ("advantages must be … torch.bool", "advantages", advantages > 0),
        ("logp must be of type Float … int64", "logp", BATCH["logp"].long()),
        ("logp is -inf at [0, 0]", "logp", BATCH["logp"] - tensor([INF, 0, 0])),
    ):
        at("policy_loss", words, **{name: value})


def configured(algorithm="grpo", **settings):
    """Settings as a run of a method takes them."""
    return check_fit(TrainConfig(**settings), ALGORITHMS[algorithm])


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_hyperparameter(algorithm):
    """By the loss, by the settings of a run, and by `--set` as text."""
    name, types = algorithm.name, algorithm.annotations
    loss = partial(algorithm.policy_loss, **BATCH)
    for call in (loss, lambda **given: configured(name, hyperparameters=given)):
        refuses(call, {}, types)
        if name not in ("gmpo", "rspo"):  # there the bound is one of log r
            for lower in {"epsilon", "epsilon_low"} & types.keys():
                refused("must be a number > 0 and ≤ 1, got 1.5", call, **{lower: 1.5})
    for key in types:
        for text in ("nonsense", *map(str, OUT_OF_RANGE.get(key, ()))):
            words = f"{key} must … got {text!r}"
            refused(words, parse_settings, algorithm, [f"{key}={text}"])


# What no type says

TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("7 prompts … 4 equal mini-batches", {"prompts_per_rollout": 7}),
    ("max_length 3 … max_new_tokens 9", {"max_length": 3, "max_new_tokens": 9}),
    ("detach_shift has no effect without router_shift", {"detach_shift": False}),
    ("placement has no effect without router_shift", {"placement": "after_clip"}),
    ("max_length has no effect … constant", {"max_length": 90}),
    ("gamma has no effect without a method with a critic", {"gamma": 0.9}),
    ("max_sampling_rounds … without dynamic_sampling", {"max_sampling_rounds": 2}),
    ("kl_in has no effect without beta > 0", {"kl_in": "reward"}),
    ("kl_estimator has no effect … KL", {"kl_estimator": "k2"}),
    ("kl_estimator … KL", {"kl_estimator": "k2", "kl_in": "reward", "beta": 0.1}),
    ("epsilon … epsilon_low", {"hyperparameters": {"epsilon": 0.1, "epsilon_low": 1}}),
    ("rollout_dtype must be 'bfloat16' or", {"rollout_dtype": "float64"}),
    ("'int8' … 'float64'", {"rollout_dtype": "int8", "dtype": "float64"}),
    ("take replay='R3'", {"trust_sampler": True, "replay": "R2"}),
    ("normaliser must be … 'token_mean'", {"normaliser": "token_meam"}),
    ("grpo … group_size must be ≥ 2, got 1", {"group_size": 1}),
    ("allow_on_policy=True", {"minibatches": 1}),
    ("router_shift … correct=True", {"algorithm": "reinforce", "router_shift": True}),
    ("did you mean 'epsilon'", {"hyperparameters": {"epsilom": 0.2}}),
    ("did you mean 'rollouts'", {"rolouts": 3}),
    ("'epsilon' … A loss's own go into hyperparameters={", {"epsilon": 0.1}),
]


def test_settings_that_do_not_go_together():
    for words, given in TOGETHER:
        refused(words, configured, **given)
    ppo = {"algorithm": "ppo", "group_size": 1, "dynamic_sampling": True}
    refused("dynamic_sampling … group_size must be ≥ 2", configured, **ppo)
    refused("min_terms 4 … max_terms 3", Arithmetic, min_terms=4, max_terms=3)
    refused("min_items 5 … max_items 4", Sorting, min_items=5, max_items=4)
    for mix in ((0.5, 0.5), (0.9, 0.9, 0.9), (NAN, 0.5, 0.5), (-0.5, 1.0, 0.5)):
        refused("habit_mix must … got ", Arithmetic, habit_mix=mix)
        refused("skill_mix must … got ", WarmStart, skill_mix=mix)
        refused("mix must … got ", Arithmetic().demonstrations, 4, 0, mix=mix)


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


ROW = {"prompt": "1+2=", "answer": 3, "terms": 2}
BAD_ROWS = [None, [], ["1+2="], [{"answer": 3}], [{"prompt": 12}]]
BAD_ROWS += [[ROW, {"prompt": "3+4="}]]


def test_training_is_refused_before_work_starts(monkeypatch):
    def too_late(*_):
        raise AssertionError("work started")

    monkeypatch.setattr(loop, "collect", too_late)
    run = partial(at, "train")
    run("'gropo' … did you mean 'grpo'", algorithm="gropo")
    run("config must be of type TrainConfig or None … seed", config={"seed": 1})
    run("causal language model … Linear", model=nn.Linear(2, 2))
    run("model and tokenizer together", tokenizer=None)
    run("model and tokenizer together", model=None)
    run("model is on the device 'meta'", model=random_model().to("meta"))
    for changed in ({"habits": 3}, {"habit": "careful"}):
        words = "task.habit must be a function f(completion), and task.habits a list"
        run(words, task=task(**changed))
    unreadable = task(sample=lambda n, seed: [{"prompt": "1+\ud800"}] * n)
    run("the tokenizer cannot read the prompts", task=unreadable)
    run("no eos_token", tokenizer=tokenizer(eos_token=None))
    run("19 tokens … only 18", tokenizer=tokenizer(more=["<extra>"]))
    frozen = random_model().requires_grad_(False)
    run("gradient … requires_grad_(True)", model=frozen)
    run("router_shift … mixture of experts … tiny-moe", algorithm="rspo")
    for name, value in (("replay", "R2"), ("router_noise", 0.1), ("router_rate", 2.0)):
        config = replace(SMALL, **{name: value})
        run(f"{name} … mixture of experts", config=config)
    run("cannot use device 'gpu'", config=replace(SMALL, device="gpu"))
    run("hooks must be a list, each a function, got [<", hooks=[print, 3])
    run("task must be an object with … 'arithmetic'", task="arithmetic")
    run("task must be an object with … <class … Arithmetic", task=Arithmetic)
    for name in PARTS:
        run(f"task must be an object with … lacks {name}", task=task(**{name: None}))
    for name in ("sample", "held_out"):
        for rows in BAD_ROWS:
            changed = task(**{name: lambda *_, rows=rows: rows})
            run(f"task.{name} must return a list … 'prompt'", task=changed)
        run(f"task.{name} … TypeError", task=task(**{name: lambda: [ROW]}))
    few = task(sample=lambda n, seed: [ROW])
    run("task.sample(4, 0) returned 1 rows, not 4", task=few)
    nothing = task(sample=lambda n, seed: [{"prompt": ""}] * n)
    run("no token of the prompt ''", task=nothing)
    for part in ("advantages", "objective", "normaliser"):
        refused(f"{part} must be a function", replace, ALGORITHMS["grpo"], **{part: 1})
    mine = replace(ALGORITHMS["grpo"], training={"dynamic": True})
    run("no setting 'dynamic', did you mean 'dynamic_sampling'", algorithm=mine)
    run("resume=True needs a checkpoint_dir", resume=True)
    run("overwrite=True needs a checkpoint_dir", overwrite=True)
    run("resume … overwrite … choose one", resume=True, overwrite=True)


def test_log_probs_of_ones_own():
    read = rl.log_probs
    for mine, words in (
        (lambda *_: None, "log_probs must return (logp, entropy), got None"),
        (lambda *given: read(*given)[0], "(logp, entropy), got torch.float32"),
        (lambda *given: [*map(torch.detach, read(*given))], "got [tensor"),
        (lambda *given: tuple(map(torch.detach, read(*given))), "with its gradient"),
    ):
        at("train", words, log_probs=mine, reward=fixed_noise)


def test_what_only_the_first_rollout_can_show():
    paid = [None, 1.0, [1.0], ["good"] * 16, [None] * 16, [NAN] * 16, [INF] * 16]
    paid += ["1" * 16, {*range(16)}, dict(enumerate([1.0] * 16)), [1e39] * 16]
    paid += [[1.0] * 17, torch.tensor(1.0), [0.0] * 15 + [1j], [torch.zeros(2)] * 16]
    paid += ["x" * 16, dict.fromkeys("abcdefghijklmnop", 1.0), [[1.0, 2.0]] * 16]

    def raising(**_):
        raise RuntimeError("the judge\nis away")

    for pay in paid:
        reward = partial(lambda pay, **_: pay, pay)
        at("train", "the reward function … number", reward=reward)
    parts = Sum({"half": lambda **_: 1.0})
    at("train", "(component 'half') must return 16 numbers", reward=parts)
    at("train", "raising raised RuntimeError: the judge is away", reward=raising)
    for wrong in (None, torch.zeros(3), torch.full((16,), NAN)):
        mine = replace(ALGORITHMS["grpo"], advantages=lambda scored, wrong=wrong: wrong)
        at("train", "advantages of grpo must be 16 finite", algorithm=mine)
    at("train", "take **columns", reward=lambda prompts, completions: 1)


def test_sampling_and_measuring():
    for prompts in ([], [""], [3], ["1" * 200]):
        at("sample", "prompt", prompts=prompts)
    for prompt in ("\ud800", "1+\udfff="):
        at("sample", "the tokenizer cannot read the prompts", prompts=[prompt])
    at("sample", "model is on the device 'meta'", model=random_model().to("meta"))
    larger = tokenizer(more=["<extra>"])
    at("sample", "19 tokens … only 18", prompts=["<extra>"], tokenizer=larger)
    for door in ("sample", "scores", "evaluate"):
        at(door, "causal language model … Linear", model=nn.Linear(2, 2))
    for door in ("scores", "evaluate", "prepare"):
        at(door, "task must be an object with … 'arithmetic'", task="arithmetic")
    changed = task(held_out=lambda *_: [])
    at("evaluate", "task.held_out must return … 'prompt'", task=changed)
    at("evaluate", "evaluate has no setting 'n' … problems, samples", n=4)
    at("evaluate", "evaluate has no setting 'group_size'", group_size=2)
    at("scores", "nan … a finite number", task=task(reward=lambda **_: [NAN] * 4))
    at("values", "critic must … make_critic", critic=MODEL)
    ending = tokenizer()
    end = [(ending.eos_token, ending.eos_token_id)]
    processor = TemplateProcessing(single=f"$A {ending.eos_token}", special_tokens=end)
    ending._tokenizer.post_processor = processor
    damaged = random_model()
    next(damaged.parameters()).data[3] = NAN
    for door in ("sample", "evaluate", "prepare"):
        at(door, "ends the prompt … add_eos_token=False", tokenizer=ending)
        at(door, "log-probs are no longer finite", model=damaged)
        at(door, "causal language model", model=make_critic(MODEL))
    at("pass_at", "k must be at most 3, … got 4", k=4)
    at("pass_at", "scores has no number", scores=torch.zeros(0, 3))
    at("mean_at", "scores has no number", scores=torch.zeros(0, 3))


def test_losses_curves_and_gates():
    at("overlong_punishment", "buffer must … max_length = 12 … got 13", buffer=13)
    at("curve", "advantage must not be 0", advantage=0)
    at("curve", "ratios must be > 0", ratios=tensor([0.0, 1.0]))
    at("curve", "no setting 'epsilon'", algorithm="sapo", epsilon=0.2)
    at("curve", "epsilon must … got -0.2", algorithm="ppo", epsilon=-0.2)
    at("policy_loss", "no setting … it has: epsilon_low", aggregation="token_mean")
    negated = {name: -BATCH[name] for name in ("logp", "old_logp")}
    at("policy_loss", "logp and old_logp must be log-probs", **negated)
    for x in negated.values():
        x[:, 0] = 0  # p = 1, as half precision rounds it
    at("policy_loss", "take the log of probabilities, and negate", **negated)
    at("policy_loss", "weight must be ≥ 0", weight=-BATCH["weight"])
    for gate in (lambda r: r, max, dict):
        at("from_gate", "gate must take (r, advantages)", gate=gate)
    for old in (2.0, 0.0):
        at("curve", f"old must be a number > 0 and ≤ 1, got {old}", old=old)
    refused("policy_loss … old_logp", ALGORITHMS["grpo"].policy_loss, BATCH["logp"])
    refused("did you mean 'tau_pos'", ALGORITHMS["sapo"].policy_loss, **BATCH, tau_po=1)
    for gate, words in (
        (lambda r, a: None, "gate must return a tensor … None"),
        (lambda r, a: r[0], "gate must return a tensor … (3,)"),
        (lambda r, a: r * INF, "objective of my gate is not finite"),
        (lambda r, a: r * 1j, "gate must return … one real number … complex64"),
        (lambda r, a: r.to_sparse(), "gate must return a tensor with one real number"),
        (lambda r, a: r.to("meta"), "gate must return a tensor with one real number"),
        (lambda r, a: r if a > 0 else 1 / r, "write torch.where(advantages > 0, x, y)"),
    ):
        refused(words, rl.from_gate(gate).policy_loss, **BATCH)
    refused("unknown algorithm 'GRPO', did you mean 'grpo'", rl.get, "GRPO")
    refused("unknown algorithm []", rl.get, [])


def test_formulas_that_have_a_sentence_of_their_own():
    lonely = rl.Scored(tensor([1.0, 0.0, 1.0, 0.5]), tensor([0, 0, 0, 7]))
    for name in ("group_relative", "group_centred", "leave_one_out"):
        words = "at least 2 responses … group 7 has 1 … group_size ≥ 2"
        refused(words, getattr(rl.advantages, name), lonely)
    for name in ("opo", "gae"):
        refused("looks at mask: give Scored(", getattr(rl.advantages, name), lonely)
    for width in (2, 4):
        masked = lonely._replace(mask=torch.ones(4, width))
        refused(f"reward per token, (4, {width})", rl.advantages.gae, masked)
    by_token = masked._replace(rewards=torch.ones(4, 4))
    refused("looks at values: give Scored(", rl.advantages.gae, by_token)
    mask, given = BATCH["mask"], BATCH | {"weight": None}
    normaliser = rl.normalisers.group_token_mean
    for length in (2, 0, -1, NAN, INF):
        words = f"max_length must … (3 tokens), got {length:g}"
        refused(words, rl.normalisers.constant, mask, length)
    refused("group_token_mean needs group", rl.normalisers.apply, normaliser, mask)
    words = "constant needs max_length … weight=normalisers.constant(mask, max_length)"
    refused(words, ALGORITHMS["dr_grpo"].policy_loss, **given)
    refused("has no router … tiny-moe", rl.moe.routed(MODEL).__enter__)


def test_a_tensor_that_is_sparse_complex_or_holds_nothing():
    """Of every argument of a loss: what no number can be read from at each place."""
    dense = "must be a dense tensor of real numbers, not a sparse, meta"
    for name, value in BATCH.items():
        for odd in (value.to_sparse(), value.to("meta")):
            at("policy_loss", f"{name} {dense}", **{name: odd})
        at("policy_loss", f"{name} must be", **{name: value * (1 + 0j)})


def test_a_rule_or_a_placement_that_does_not_exist():
    """By its own function, which a loss sends to; no other rule stands in for it."""
    seen = BATCH["logp"], BATCH["old_logp"], BATCH["mask"], BATCH["advantages"]
    factor, wrong = rl.corrections.factor, "corrections has no setting"
    for rule in rl.corrections.RULES:
        for typo in (f"{rule}s", rule[1:], rule.replace("_", "-") + "_"):
            refused(f"{wrong} {typo!r}, did you mean", factor, {typo: 2.0}, *seen)
    for typo, meant in (("token_maks", "token_mask"), ("tokn_mask", "token_mask")):
        refused(f"{wrong} {typo!r}, did you mean {meant!r}", factor, {typo: 2}, *seen)
    refused("rules must be a dictionary", factor, ["token_mask"], *seen)
    refused("opsm … advantages", factor, {"opsm": 0.1}, *seen[:3], None)
    shifted = partial(rl.moe.shifted, gamma=torch.ones(2, 3))
    for typo in ("befor_clip", "before", None):
        words = f"placement must be 'before_clip' or 'after_clip', got {typo!r}"
        given = BATCH["old_logp"], BATCH["weight"], BATCH["mask"]
        refused(words, shifted, *given, placement=typo)


def test_advantages_of_ones_own():
    """The same sentence in a run and in the bridge to TRL."""
    for made, got in (
        (lambda s: s.total * NAN, "torch.float32 of shape"),
        (lambda s: s.total * INF, "torch.float32 of shape"),
        (lambda s: s.total * (1 + 0j), "complex64"),
        (lambda s: s.total.to_sparse(), "torch.float32 of shape"),
        (lambda s: s.total[:3], "torch.float32 of shape (3,)"),
        (lambda s: s.total.numpy(), "array("),
        (lambda s: None, "None"),
    ):
        words = f"finite numbers, one per response … as a tensor; got … {got}"
        mine = replace(ALGORITHMS["grpo"], name="mine", advantages=made)
        at("train", f"the advantages of mine must be 16 {words}", algorithm=mine)
        refused(f"advantages … must be 8 {words}", bridged.check, made, 4, 3)
    uneven = torch.arange(8.0), torch.ones(8, 2), 3
    centred = rl.advantages.group_centred
    refused("8 rewards … groups of 3", bridged.advantages_of, centred, *uneven)


def test_sums_of_rewards_names_and_devices():
    refused("components must be a dictionary … got [", Sum, [len])
    for parts in ({}, {3: len}, {"a\n": len}, {"a": "b"}):
        refused("at least one reward function, name → function, got {", Sum, parts)
    refused("weights must be 2 … a, b", Sum, {"a": len, "b": len}, [1])
    refused("weights must be 1 finite … got [inf]", Sum, {"a": len}, [INF])
    at("build", "preset must be 'tiny' or … got 'tinny'", preset="tinny")
    for value in ("gpu", "", None, "cuda:-1", ["cpu"], "hpu", "npu", "mtia", "xla"):
        refused(f"cannot use device {value!r}", pick_device, value)
    refused("cannot use device 'gpu'", rl.warm_start, device="gpu")
    for value in (None, 3.5):
        words = f"answer must be a whole number or text, got {value!r}"
        refused(words, verify, "#3", value)
        at("correctness", "answer must be a whole number", answer=[value])
    refused("unknown arm 'GROP', did you mean 'GRPO'", grid.Cell, "GROP")
    refused("RSPO needs a mixture of experts: world='moe'", grid.Cell, "RSPO")
    refused("did you mean 'sorting'", grid.Cell, "GRPO", world="sort")
    refused("K must be one of 1, 4, 16", grid.Cell, "GRPO", updates=3)


# Files


def small_train(folder, **given):
    given |= {"reward": fixed_noise, "progress": False}
    return rl.train("grpo", config=SMALL, **PAIR, checkpoint_dir=folder, **given)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "no file": lambda path: None,
    "an empty file": lambda path: path.write_bytes(b""),
    "prose": lambda path: path.write_text("Dear reader,\nthis is something else.\n"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_is_not_what_it_should_be(what, tmp_path):
    for name in (checkpoint.NAME, "h.csv", "config.json"):
        DAMAGE[what](tmp_path / name)
    refused(checkpoint.NAME, small_train, tmp_path, resume=True)
    refused("h.csv", History.load, tmp_path / "h.csv")
    refused("no causal language model", load, tmp_path / "h.csv")
    refused("no causal language model", load, tmp_path)  # whose config.json it is


def test_a_history_that_holds_more_than_numbers(tmp_path):
    """A hook may write into a row. What `save` writes, `load` reads, also with the
    mark that Excel puts before it."""
    path = tmp_path / "h.csv"
    for value in ("good", tensor([1.0, 2.0]), [1.0], {}):
        words = "the history's column 'mine' must hold numbers, got"
        refused(words, History("grpo", [{"mine": value}]).save, path)
        assert not path.exists()
    for value in (np.float64(0.1), np.float32(0.5), tensor(2.0), 3, True, None):
        History("grpo", [{"mine": value, "reward": 1 / 3}]).save(path)
        plain = None if value is None else float(value)
        for text in (path.read_bytes(), b"\xef\xbb\xbf" + path.read_bytes()):
            path.write_bytes(text)
            assert History.load(path).rows == [{"mine": plain, "reward": 1 / 3}]


# Two settings at once: the run works, or one sentence names one of them

SETTINGS = """rollouts=0 rollouts=1 seed=-1 seed=2e3 seed=99999999999999999999
prompts_per_rollout=3 prompts_per_rollout=8 group_size=1 group_size=100000000
group_size=2 max_new_tokens=1 max_new_tokens=125 max_new_tokens=0 temperature=1e-300
temperature=1e300 temperature=0.01 top_p=0 top_p=1e-9 top_k=1 top_k=99999 rolouts=2
dynamic_sampling=True max_sampling_rounds=1 overlong_share=1 overlong_share=2 beta=-1
overlong_filtering=True rollout_dtype=bfloat16 rollout_dtype=int8 sampler_delay=1
sampler_delay=10000 trust_sampler=True router_noise=0.1 token_truncate=1e-30
token_mask=2,1 opsm=0.1 advantage=gdpo advantage=maxrl
replay=R2 replay=R3 router_shift=True placement=after_clip detach_shift=False
router_rate=2.0 minibatches=1 minibatches=3 minibatches=4 epochs=2 micro_batch_size=1
micro_batch_size=7 optimizer=sgd optimizer=adam learning_rate=1e30 learning_rate=1e-300
learning_rate=nan weight_decay=1e300 weight_decay=1e9 normaliser=constant max_length=7
normaliser=mean max_length=100 entropy_bonus=1e20 beta=1e10 beta=0.1 kl_in=reward
kl_estimator=k1 gamma=0 gamma=1.5 lam=0 value_clip=1e-9 eval_every=1 eval_problems=1
eval_samples=3 samples_every=1 checkpoint_every=1 device=gpu device=meta dtype=bfloat16
dtype=float64 dtype=int8 allow_on_policy=True schedule=cosine""".split()


def trained(pair: tuple[str, str]) -> None:
    given = asdict(SMALL) | {"rollouts": 1, "max_new_tokens": 8}
    config = TrainConfig(**given | parse_settings(ALGORITHMS["grpo"], pair))
    rl.train("grpo", config=config, **PAIR, reward=fixed_noise, progress=False)


@pytest.mark.filterwarnings("ignore:stopped after")
def test_two_settings_at_once():
    unclear = []
    for pair in random.Random(0).sample([*combinations(SETTINGS, 2)], 200):
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
