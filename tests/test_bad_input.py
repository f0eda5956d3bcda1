"""Bad input: whatever a reader hands in wrong gets one clear sentence, before any work.

A row is (what is wrong, a call, words that the sentence must hold). Most rows are made
from the annotations: every setting, every hyperparameter and every argument of a public
function, each with everything that its type does not allow. The others stand in tables
below: tasks, rewards and models, files, the command line. NumPy and torch scalars are
no bad input, and become plain numbers.

Left out, for nobody meets it or Python's own sentence is as clear: an error inside a
function of the reader's (its traceback shows where), a task whose rows change later on,
more positional settings than there are, `importance.ratio` (finite for every number),
and the routing's inner functions, whose shapes `losses/test_shapes.py` enforces.
"""

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import tensor
from transformers import AutoModelForCausalLM, GPT2Config, MambaConfig

from refimpl import (
    advantages,
    algorithms,
    checkpoint,
    curves,
    importance,
    kl,
    models,
    moe,
    normalisers,
    rewards,
    rollout,
    scoring,
    trainer,
)
from refimpl.__main__ import main, said_by_us
from refimpl.algorithms import ALGORITHMS, Algorithm, from_gate
from refimpl.config import TrainConfig
from refimpl.evaluation import maj_at, mean_at, pass_at, scores
from refimpl.history import History, of_runs
from refimpl.lab import bench, grid
from refimpl.settings import annotations
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import Arithmetic, make_tokenizer, verify
from refimpl.trainer import evaluate, prepare, train
from tests.worlds import PROMPTS, SMALL, TOKENIZER, random_model, random_moe

NAN, INF = math.nan, math.inf
Words = tuple[str, ...]


class Row(NamedTuple):
    what: str
    call: Callable[[], Any]
    words: Words


def the_sentence(call: Callable[[], Any], words: Words) -> None:
    """`call` is refused in one sentence of ours that holds all of `words`."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    said = str(caught.value)
    assert said_by_us(caught.value), f"not raised by a `raise` of ours: {said}"
    assert "\n" not in said and len(said) < 1000
    assert not [word for word in words if word not in said], said


def the_line(command: list[str], words: Words, capsys) -> None:
    """`command` exits with 2 and one line on stderr, or the box that tyro draws."""
    try:
        code, box = main(command), False
    except SystemExit as ended:
        code, box = ended.code, True
    printed = capsys.readouterr()
    assert code == 2 and "Traceback" not in printed.err and not printed.out
    if not box:
        assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    said = " ".join(printed.err.split())
    assert not [word for word in words if word not in said], said


TABLE: list[Row] = []


def table(rows: list[Row]):
    """A test's rows, counted."""
    TABLE.extend(rows)
    return pytest.mark.parametrize(
        ("call", "words"),
        [(row.call, row.words) for row in rows],
        ids=[row.what for row in rows],
    )


# What a type does not allow

WRONG = {
    "text": "nonsense",
    "NaN": NAN,
    "inf": INF,
    "-inf": -INF,
    "a list": [1],
    "two numbers": np.ones(2),
    "a function": len,
}


def parts(kind) -> list:
    """An annotation taken apart: its types, and the limits of a range."""
    if get_origin(kind) is Annotated:
        inner, *rest = get_args(kind)
        limits = [m for part in rest for m in getattr(part, "metadata", [part])]
        return parts(inner) + limits
    if NoneType in get_args(kind) or any(
        get_origin(part) is Annotated for part in get_args(kind)
    ):
        return [found for part in get_args(kind) for found in parts(part)]
    return [kind]


def bad_values(kind) -> dict[str, Any]:
    """What a setting of this type must refuse, by a short name."""
    found, bad = parts(kind), dict(WRONG)
    if str in found:
        del bad["text"]
    if NoneType not in found:
        bad["None"] = None
    if bool in found:
        bad |= {"1": 1, "'false'": "false"}
    else:
        bad["True"] = True
    if int in found:
        bad["1.5"] = 1.5
    for limit in found:
        for name, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            if hasattr(limit, name):
                value = getattr(limit, name) + step
                bad[f"{value}"] = value
    return bad


def bad_texts(kind) -> dict[str, str]:
    """The same for `--set name=value`, where everything is text."""
    found = parts(kind)
    bad = {"nonsense": "nonsense", "nan": "nan", "inf": "-inf", "a list": "[1]"}
    if str in found:
        return {}
    if NoneType not in found:
        bad["None"] = "None"
    if int in found or float in found:
        bad["True"] = "True"
        bad |= {k: str(v) for k, v in bad_values(kind).items() if k[-1:].isdigit()}
    return bad


# Settings: every field of every class

CHECKED = (TrainConfig, WarmStart, Arithmetic)


def of_fields(cls) -> list[Row]:
    return [
        Row(
            f"{cls.__name__}({name}={label})",
            lambda name=name, value=value: cls(**{name: value}),
            (f"{name} must be ", "got "),
        )
        for name, kind in annotations(cls).items()
        for label, value in bad_values(kind).items()
    ]


@table([row for cls in CHECKED for row in of_fields(cls)])
def test_a_setting(call, words):
    the_sentence(call, words)


def of_two(words: Words, algorithm="grpo", **given) -> Row:
    label = ", ".join(f"{name}={value}" for name, value in given.items())

    def call():
        TrainConfig(**given).check(ALGORITHMS[algorithm])

    return Row(f"{algorithm}: {label}", call, words)


TOGETHER = [
    of_two(("7", "4", "minibatches"), prompts_per_rollout=7),
    of_two(("max_length 3", "max_new_tokens 9"), max_length=3, max_new_tokens=9),
    of_two(("detach_shift", "before_clip"), detach_shift=False, placement="after_clip"),
    of_two(("float64", "rollout_dtype", "float32"), rollout_dtype="float64"),
    of_two(("float64", "dtype", "bfloat16"), rollout_dtype="bfloat16", dtype="float64"),
    of_two(("group_size must be ≥ 2", "got 1"), group_size=1),
    of_two(("group_size must be ≥ 2", "got 1"), "dapo", group_size=1),
    of_two(("group_size", "1"), "ppo", group_size=1, dynamic_sampling=True),
    of_two(("allow_on_policy=True",), minibatches=1),
    of_two(("correct=True", "router_shift"), "reinforce", router_shift=True),
    of_two(("did you mean 'epsilon'",), hyperparameters={"epsilom": 0.2}),
    of_two(("no setting 1",), hyperparameters={1: 0.2}),
    of_two(("did you mean 'rollouts'",), rolouts=3),
    of_two(("'lr'", "it has"), lr=3),
]


@table(
    [
        *TOGETHER,
        Row(
            "replace(config, seed=text)",
            lambda: replace(TrainConfig(), seed="one"),
            ("seed must be a whole number ≥ 0, got 'one'",),
        ),
        Row(
            "Arithmetic(min_terms=4, max_terms=3)",
            lambda: Arithmetic(min_terms=4, max_terms=3),
            ("min_terms 4", "max_terms 3"),
        ),
        *(
            Row(
                f"{cls.__name__}({name}={mix})",
                lambda cls=cls, name=name, mix=mix: cls(**{name: mix}),
                (name, "must", "got "),
            )
            for cls, name in ((Arithmetic, "habit_mix"), (WarmStart, "skill_mix"))
            for mix in (
                (0.5, 0.5),
                (0.9, 0.9, 0.9),
                (0.0, 0.0, 0.0),
                (NAN, 0.5, 0.5),
                (-0.5, 1.0, 0.5),
                ("0.2", 0.4, 0.4),
            )
        ),
    ]
)
def test_settings_that_do_not_go_together(call, words):
    the_sentence(call, words)


# Hyperparameters: every one of every algorithm, by every way in

BATCH = {
    "logp": tensor([[-1.0, -0.5, -2.0], [-0.7, -1.2, -0.1]]),
    "old_logp": tensor([[-1.1, -0.5, -1.9], [-0.7, -1.0, -0.2]]),
    "advantages": tensor([1.0, -1.0]),
    "mask": tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
    "weight": torch.full((2, 3), 0.2),
}
EVERY_HYPERPARAMETER = [
    (algorithm, name, kind)
    for algorithm in ALGORITHMS.values()
    for name, kind in algorithm.annotations.items()
]


def of_hyperparameters() -> list[Row]:
    def loss(algorithm, given):
        return algorithm.policy_loss(**BATCH, **given)

    def config(algorithm, given):
        return TrainConfig(hyperparameters=given).check(algorithm)

    return [
        Row(
            f"{algorithm.name}, {name}={label}, {way.__name__}",
            lambda way=way, a=algorithm, given={name: value}: way(a, given),
            (f"{name} must be ", "got "),
        )
        for algorithm, name, kind in EVERY_HYPERPARAMETER
        for label, value in bad_values(kind).items()
        for way in (loss, config)
    ]


@table(of_hyperparameters())
def test_a_hyperparameter(call, words):
    the_sentence(call, words)


# Arguments: every one of every public function of plain numbers and tensors

GROUP = tensor([0, 0, 1, 1])
REWARDS = tensor([1.0, 0.0, 1.0, 0.5])
MASK = tensor([[1.0, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
LOGP = -torch.arange(1.0, 13.0).view(4, 3) / 10
OLD = LOGP - 0.1
ROUTED = LOGP.view(2, 2, 3, 1).expand(2, 2, 3, 2)  # (… layers k)
EXPERTS = tensor([[[[0, 1]], [[2, 3]]]])
KL = {"logp": LOGP, "ref_logp": OLD}
RATIO = {"logp": LOGP, "old_logp": OLD, "mask": MASK}
LOSS = {**BATCH, "weight": None}
CRITIC = {"values": LOGP, "old_values": OLD, "targets": OLD, "mask": MASK}

NEGATIVE = {"negative": -0.5}
NOT_POSITIVE = {"zero": 0.0, **NEGATIVE}
NOT_A_SHARE = {"too large": 1.5, **NEGATIVE}
NOT_A_COUNT = {"zero": 0, "negative": -1, "a fraction": 1.5}

# function, arguments that it takes, what is out of range for its numbers
FUNCTIONS: list[tuple[Callable, dict[str, Any], dict[str, dict[str, Any]]]] = [
    (
        advantages.group_relative,
        {"rewards": REWARDS, "group": GROUP, "eps": 1e-6},
        {"eps": NEGATIVE},
    ),
    (advantages.group_centred, {"rewards": REWARDS, "group": GROUP}, {}),
    (advantages.leave_one_out, {"rewards": REWARDS, "group": GROUP}, {}),
    (
        advantages.gae,
        {"rewards": LOGP, "values": OLD, "mask": MASK, "gamma": 1.0, "lam": 0.9},
        {"gamma": NOT_A_SHARE, "lam": NOT_A_SHARE},
    ),
    (
        advantages.whiten,
        {"advantages": LOGP, "mask": MASK, "eps": 1e-8},
        {"eps": NEGATIVE},
    ),
    (normalisers.seq_mean_token_mean, {"mask": MASK}, {}),
    (normalisers.token_mean, {"mask": MASK}, {}),
    (normalisers.group_token_mean, {"mask": MASK, "group": GROUP}, {}),
    (
        normalisers.constant,
        {"mask": MASK, "max_length": 3},
        {"max_length": {"below the longest": 2, "zero": 0, "negative": -3}},
    ),
    (kl.k1, KL, {}),
    (kl.k2, KL, {}),
    (kl.k3, KL, {}),
    (kl.k3_plus, KL, {}),
    (kl.unbiased_k3, {**KL, "old_logp": OLD}, {}),
    (
        kl.token_rewards,
        {"scores": REWARDS, **KL, "mask": MASK, "beta": 0.1},
        {"beta": NEGATIVE},
    ),
    (importance.log_ratio, RATIO, {}),
    (importance.largest_deviation, RATIO, {}),
    (importance.sequence_log_ratio, {"z": LOGP, "mask": MASK}, {}),
    (importance.gspo_token_log_ratio, {"logp": LOGP, "z": OLD, "mask": MASK}, {}),
    (
        importance.truncated_weight,
        {"old_logp": OLD, "rollout_logp": LOGP, "mask": MASK, "cap": 2.0},
        {"cap": NOT_POSITIVE},
    ),
    (moe.overlap, {"old": EXPERTS, "new": EXPERTS}, {}),
    (moe.router_kl, {"old": LOGP, "new": OLD}, {}),
    (
        moe.router_shift,
        {"logp": ROUTED, "old_logp": ROUTED, "floor": 0.7},
        {"floor": {"zero": 0, **NOT_A_SHARE}},
    ),
    (
        moe.shifted,
        {
            "old_logp": OLD,
            "weight": MASK,
            "mask": MASK,
            "gamma": LOGP.exp(),
            "placement": "after_clip",
            "one_ratio": True,
        },
        {"gamma": {"above 1": MASK + 1, "zeros": 0 * MASK}},
    ),
    (
        rewards.overlong_punishment,
        {"length": tensor([4.0, 9.0]), "max_length": 12, "buffer": 4},
        {
            "max_length": NOT_A_COUNT,
            "buffer": {**NOT_POSITIVE, "above max_length": 13},
        },
    ),
    (
        curves.curve,
        {"algorithm": "grpo", "advantage": 1.0, "ratios": tensor([0.5, 1.0, 2.0])},
        {
            "advantage": {"zero": 0},
            "ratios": {"zero": tensor([0.0, 1.0]), "negative": tensor([-1.0, 1.0])},
        },
    ),
    (
        algorithms.value_loss,
        {**CRITIC, "epsilon": 0.2},
        {"epsilon": NOT_POSITIVE},
    ),
    (mean_at, {"scores": LOGP.exp()}, {}),
    (
        pass_at,
        {"scores": LOGP.exp(), "k": 2},
        {"k": {"above n": 4, **NOT_A_COUNT}},
    ),
    (
        maj_at,
        {"scores": LOGP.exp(), "answers": [["7"] * 3] * 4, "k": 2},
        {
            "answers": {"too few": [["7"] * 3], "ragged": [["7"] * 3, ["7"]]},
            "k": {"above n": 4, **NOT_A_COUNT},
        },
    ),
    (of_runs, {"values": [0.5, 0.7], "digits": 2}, {"digits": {"negative": -1}}),
    (History("grpo", [{"reward": 1.0}]).reached, {"level": 0.9, "name": "reward"}, {}),
    (
        Arithmetic().sample,
        {"n": 4, "seed": 0},
        {"n": NOT_A_COUNT, "seed": {"negative": -1, "a fraction": 1.5}},
    ),
    (
        Arithmetic().held_out,
        {"n": 4, "seed": 0},
        {"n": NOT_A_COUNT, "seed": {"negative": -1, "a fraction": 1.5}},
    ),
    (
        Arithmetic().demonstrations,
        {"n": 4, "seed": 0, "mix": (0.3, 0.4, 0.3)},
        {"n": NOT_A_COUNT, "mix": {"two": (0.5, 0.5), "zeros": (0, 0, 0)}},
    ),
    (ALGORITHMS["grpo"].policy_loss, BATCH, {}),  # the same code for all of them
]
MAY_BE_NONE = {"weight", "ratios", "epsilon", "mix"}
INTEGERS_TOO = {"mask", "rewards", "advantages", "scores", "length", "weight", "values"}


def wrong_tensors(name: str, good: torch.Tensor, first: bool) -> dict[str, Any]:
    """What stands in place of a tensor: nothing, other things, others of its kind."""
    bad = {
        "None": None,
        "text": "nonsense",
        "a list": good.tolist(),
        "a number": 1.0,
        "an array": good.numpy(),
        "another rank": good[None],
    }
    if not first:
        bad["a row more"] = torch.cat([good, good[:1]])
    if not good.is_floating_point():
        return {**bad, "floats": good.double(), "truth values": good.bool()}
    for label, value in (("NaN", NAN), ("inf", INF), ("-inf", -INF)):
        bad[label] = good.clone()
        bad[label].view(-1)[0] = value
    if name == "mask":
        bad |= {"halves": good / 2, "twos": good * 2, "negative": -good}
    elif name not in INTEGERS_TOO:
        bad["integers"] = good.long()
    return bad


def wrong_numbers(good) -> dict[str, Any]:
    bad = {"None": None, "a list": [1], "a function": len, "two": np.ones(2)}
    if not isinstance(good, bool):
        bad |= {"NaN": NAN}
    if not isinstance(good, str):
        bad |= {"text": "nonsense"}
    if isinstance(good, int | float) and not isinstance(good, bool):
        bad |= {"inf": INF, "True": True}
    return bad


def of_argument(name: str, label: str, value, out_of_range: bool) -> Words:
    """What a sentence about an argument must hold."""
    if out_of_range:
        return name, "must"
    if label == "another rank":  # of two tensors that differ, the second is named
        return "must have shape", "got "
    if isinstance(value, torch.Tensor) and label in ("NaN", "inf", "-inf"):
        return (name, "0 and 1") if name == "mask" else (f"{name} is ", "finite")
    return f"{name} must ", "got "


def of_function(function, given: dict, out_of_range: dict) -> list[Row]:
    owner = getattr(function, "__self__", None)
    title = f"{owner.name}." if isinstance(owner, Algorithm) else ""
    title += function.__name__
    rows, tensors = [], [n for n, v in given.items() if isinstance(v, torch.Tensor)]
    for name, good in given.items():
        if good is None or isinstance(good, list):
            continue
        bad = (
            wrong_tensors(name, good, name == tensors[0])
            if name in tensors
            else wrong_numbers(good)
        )
        bad |= out_of_range.get(name, {})
        if name in MAY_BE_NONE:
            bad.pop("None", None)
        rows += [
            Row(
                f"{title}({name}: {label})",
                lambda given={**given, name: value}: function(**given),
                of_argument(name, label, value, label in out_of_range.get(name, ())),
            )
            for label, value in bad.items()
        ]
    return rows


@table([row for entry in FUNCTIONS for row in of_function(*entry)])
def test_an_argument(call, words):
    the_sentence(call, words)


def of_group(function) -> Row:
    return Row(
        f"{function.__name__}: a group of one",
        lambda: function(REWARDS, tensor([0, 0, 0, 7])),
        ("group 7 has 1", "at least 2", "group_size"),
    )


def by_gate(gate) -> Callable:
    """The loss of an algorithm with this gate."""
    given = {k: v for k, v in BATCH.items() if k != "weight"}
    return lambda: from_gate(gate).policy_loss(**given)


MORE = [
    of_group(advantages.group_relative),
    of_group(advantages.group_centred),
    of_group(advantages.leave_one_out),
    Row(
        "Dr. GRPO without a weight",
        lambda: ALGORITHMS["dr_grpo"].policy_loss(**LOSS),
        ("constant needs max_length", "weight=normalisers.constant(mask, max_length)"),
    ),
    Row(
        "apply without a group",
        lambda: normalisers.apply(normalisers.group_token_mean, MASK),
        ("group_token_mean needs group",),
    ),
    Row(
        "apply: a name",
        lambda: normalisers.apply("token_mean", MASK),
        ("normaliser must be a function", "'token_mean'"),
    ),
    Row(
        "policy_loss: a hyperparameter's nearest name",
        lambda: ALGORITHMS["sapo"].policy_loss(**BATCH, tau_positive=1.0),
        ("no setting 'tau_positive'", "did you mean 'tau_pos'"),
    ),
    Row(
        "policy_loss: old TRL argument",
        lambda: ALGORITHMS["grpo"].policy_loss(**BATCH, aggregation="token_mean"),
        ("no setting 'aggregation'", "it has: epsilon_low"),
    ),
    Row(
        "policy_loss: logp alone",
        lambda: ALGORITHMS["grpo"].policy_loss(LOGP),
        ("policy_loss", "old_logp"),
    ),
    Row(
        "gae without a mask",
        lambda: advantages.gae(LOGP, OLD),
        ("gae", "mask"),
    ),
    Row(
        "k3: one more row",
        lambda: kl.ESTIMATORS["k3"](LOGP, OLD[:3], OLD),
        ("ref_logp must have shape (...) = (4, 3), got (3, 3)",),
    ),
    Row("a gate: None", lambda: from_gate(None), ("gate must be a function", "None")),
    Row("a gate: text", lambda: from_gate("sech"), ("gate must be a function",)),
    Row("a gate's name", lambda: from_gate(len, 3), ("name must be text, got 3",)),
    Row("a gate that gives a number", by_gate(lambda r, a: 1.0), ("gate", "float")),
    Row("a gate that gives None", by_gate(lambda r, a: None), ("gate", "NoneType")),
    Row("a gate that gives a row", by_gate(lambda r, a: r[0]), ("gate", "(3,)")),
    Row("a gate that gives NaN", by_gate(lambda r, a: r * NAN), ("gate is nan",)),
    Row("a gate that gives ∞", by_gate(lambda r, a: r * INF), ("gate is inf",)),
    Row("a gate of one argument", by_gate(lambda r: r), ("gate", "(r, advantages)")),
    *(
        Row(f"algorithms.get({name!r})", lambda n=name: algorithms.get(n), (said,))
        for name, said in {
            "gropo": "did you mean 'grpo'",
            "GRPO": "did you mean 'grpo'",
            "": "unknown algorithm ''",
            None: "unknown algorithm None",
            3: "unknown algorithm 3",
            ("grpo",): "unknown algorithm ('grpo',)",
            (): "unknown algorithm ()",
        }.items()
    ),
    Row("algorithms.get([])", lambda: algorithms.get([]), ("algorithm", "[]")),
    Row(
        "curve: a hyperparameter of another method",
        lambda: curves.curve("sapo", epsilon=0.2),
        ("sapo has no setting 'epsilon'",),
    ),
    Row(
        "curve: a hyperparameter out of range",
        lambda: curves.curve("ppo", epsilon=-0.2),
        ("epsilon must be a number in (0, 1], got -0.2",),
    ),
    *(
        Row(f"Sum: {label}", lambda given=given: rewards.Sum(*given), words)
        for label, given, words in (
            ("a list", ([len],), ("components must be a dictionary", "got [")),
            ("None", (None,), ("components must be a dictionary", "got None")),
            ("nothing", ({},), ("at least one reward function", "got {}")),
            ("a name that is a number", ({3: len},), ("name must be text", "got 3")),
            ("no function", ({"a": "b"},), ("'a' must be a function", "got 'b'")),
            (
                "a weight short",
                ({"a": len, "b": len}, [1]),
                ("weights must be 2", "a, b"),
            ),
            ("an infinite weight", ({"a": len}, [INF]), ("weight of 'a'", "got inf")),
            ("a weight of text", ({"a": len}, ["1"]), ("weight of 'a'", "got '1'")),
        )
    ),
    Row("of_runs: none", lambda: of_runs([]), ("at least one number",)),
    Row("of_runs: NaN alone", lambda: of_runs([NAN]), ("at least one number",)),
    Row("of_runs: words", lambda: of_runs(["a"]), ("values", "'a'")),
    Row("of_runs: None in it", lambda: of_runs([0.5, None]), ("values", "None")),
    Row("of_runs: a number", lambda: of_runs(0.5), ("values", "0.5")),
    Row(
        "no accuracy measured",
        lambda: History("grpo", [{"accuracy": None}]).accuracy,
        ("no accuracy was measured",),
    ),
]


@table(MORE)
def test_a_call(call, words):
    the_sentence(call, words)


def test_a_column_that_is_not_there_names_those_that_are():
    """By `[]`, where Python's own KeyError is what a reader expects."""
    with pytest.raises(KeyError, match=r"no column 'rewards'; there are: reward"):
        History("grpo", [{"reward": 1.0}])["rewards"]


@pytest.mark.parametrize("given", [None, 5, b"#5", ["#5"], NAN, "#5" * 4096, "#5\n"])
def test_the_verifier_never_raises_over_a_response(given):
    assert verify(given, 5) is False


# Models, tokenizers, tasks, rewards


@cache
def model():
    return random_model()


@cache
def sampled() -> rollout.Rollout:
    return rollout.sample(model(), TOKENIZER, PROMPTS, group_size=2, max_new_tokens=6)


def endless():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    return tokenizer


def larger():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<extra>"])
    return tokenizer


def mamba():
    """An architecture whose state is no key-value cache."""
    return AutoModelForCausalLM.from_config(
        MambaConfig(
            vocab_size=len(TOKENIZER),
            hidden_size=16,
            state_size=4,
            num_hidden_layers=1,
            eos_token_id=TOKENIZER.eos_token_id,
        )
    )


def short_sighted():
    """A model of 16 positions."""
    return AutoModelForCausalLM.from_config(
        GPT2Config(
            vocab_size=len(TOKENIZER), n_positions=16, n_embd=8, n_layer=1, n_head=1
        )
    )


def training(words: Words, what: str, **changed) -> Row:
    """`train` with its arguments changed; a function is called to make one."""

    def call():
        given = {"algorithm": "grpo", "config": SMALL, "progress": False}
        given |= {"model": random_model, "tokenizer": make_tokenizer}
        given |= changed
        for name in ("model", "tokenizer", "task"):
            if callable(given.get(name)) and hasattr(given[name], "__code__"):
                given[name] = given[name]()
        train(**given)

    return Row(f"train: {what}", call, words)


def without(name: str):
    """A task that lacks one of its parts."""
    return lambda: type(
        "Bare", (), {n: getattr(Arithmetic(), n) for n in PARTS - {name}}
    )()


PARTS = {"sample", "held_out", "reward", "habit", "habits"}


def task_with(**changed):
    """The arithmetic world with parts of it replaced."""
    given = {name: getattr(Arithmetic(), name) for name in PARTS}
    given |= changed
    given = {k: staticmethod(v) if callable(v) else v for k, v in given.items()}
    return lambda: type("Changed", (), given)()


ROWS = [{"prompt": "1+2=", "answer": 3, "terms": 2}]
BAD_ROWS = {
    "None": None,
    "nothing": [],
    "a number": 3,
    "text": "1+2=",
    "prompts alone": ["1+2="],
    "a generator": (row for row in ROWS),
    "no prompt": [{"answer": 3}],
    "a prompt that is a number": [{"prompt": 12, "answer": 3}],
    "a prompt that is None": [{"prompt": None}],
    "other keys": [*ROWS, {"prompt": "3+4="}],
    "too few": ROWS,
}
BAD_REWARDS = {
    "None": None,
    "a number": 1.0,
    "too few": [1.0],
    "words": ["good"] * 16,
    "None each": [None] * 16,
    "NaN": [NAN] * 16,
    "infinity": [INF] * 16,
    "text": "x" * 16,
    "a dictionary": dict.fromkeys("abcdefghijklmnop", 1.0),
    "lists": [[1.0, 2.0]] * 16,
}


def raising(**_):
    raise RuntimeError("the judge\nis away")


def returning(value) -> Callable:
    def judge(**_):
        return value

    return judge


MISTAKEN = [
    *(
        training((said, repr(name)), f"algorithm={name!r}", algorithm=name)
        for name, said in {
            "gropo": "did you mean 'grpo'",
            "": "unknown algorithm",
            None: "algorithm must be",
            3: "algorithm must be",
        }.items()
    ),
    training(("algorithm must be",), "algorithm=[…]", algorithm=["grpo"]),
    training(("algorithm must be",), "algorithm=a class", algorithm=Algorithm),
    *(
        training(
            ("config must be a TrainConfig", said), f"config={value!r}", config=value
        )
        for value, said in (
            ({"seed": 1}, "seed"),
            ("fast", "'fast'"),
            (3, "3"),
            (TrainConfig, "TrainConfig"),
        )
    ),
    *(
        training(("model", said), f"model={value!r}", model=value)
        for value, said in (
            ("tiny", "'tiny'"),
            (3, "3"),
            (torch.nn.Linear(2, 2), "Linear"),
            ({}, "{}"),
        )
    ),
    *(
        training(("tokenizer", said), f"tokenizer={value!r}", tokenizer=value)
        for value, said in (("tiny", "'tiny'"), (3, "3"), (str.split, "split"))
    ),
    training(("model and tokenizer together",), "no tokenizer", tokenizer=None),
    training(("model and tokenizer together",), "no model", model=None),
    training(("no eos_token",), "tokenizer without EOS", tokenizer=endless),
    training(("19 tokens", "only 18"), "tokenizer larger than model", tokenizer=larger),
    training(("Mamba", "cannot be sampled from"), "Mamba", model=mamba),
    training(("16 positions", "max_new_tokens"), "few positions", model=short_sighted),
    training(
        ("gradient", "requires_grad_(True)"),
        "a frozen model",
        model=lambda: random_model().requires_grad_(False),
    ),
    training(
        ("rspo", "mixture of experts", "tiny-moe"), "RSPO, dense", algorithm="rspo"
    ),
    training(
        ("replay", "mixture of experts"), "replay", config=replace(SMALL, replay="R2")
    ),
    training(("unknown device 'gpu'",), "device", config=replace(SMALL, device="gpu")),
    training(
        ("did you mean 'epsilon'",),
        "hyperparameters",
        config=replace(SMALL, hyperparameters={"epsilom": 0.1}),
    ),
    *(
        training((f"lacks {name}", "task must have"), f"no {name}", task=without(name))
        for name in sorted(PARTS - {"reward"})
    ),
    training(("reward",), "no reward", task=without("reward")),
    *(
        training(("task must have", said), f"task={value!r}", task=value)
        for value, said in (("arithmetic", "'arithmetic'"), (3, "3"), ([], "[]"))
    ),
    training(("task must have", "Arithmetic"), "task is a class", task=Arithmetic),
    *(
        training(
            (f"task.{method}", "prompt"),
            f"{method} returns {label}",
            task=task_with(**{method: lambda *_, rows=rows: rows}),
        )
        for method in ("sample", "held_out")
        for label, rows in BAD_ROWS.items()
        if (method, label) != ("held_out", "too few")
    ),
    *(
        training(
            (f"task.{method}", "TypeError"),
            f"{method} takes nothing",
            task=task_with(**{method: lambda: ROWS}),
        )
        for method in ("sample", "held_out")
    ),
    training(
        ("prompt", "''"),
        "an empty prompt",
        task=task_with(sample=lambda n, seed: [{"prompt": ""}] * n),
    ),
    training(("habits",), "habits=3", task=task_with(habits=3)),
    training(("habit",), "habit=text", task=task_with(habit="careful")),
    *(
        training(("reward must be a function", said), f"reward={value!r}", reward=value)
        for value, said in (("accuracy", "'accuracy'"), (1.0, "1.0"), ([], "[]"))
    ),
    *(
        training(
            (name, "must be True or False", "'yes'"), f"{name}='yes'", **{name: "yes"}
        )
        for name in ("resume", "overwrite", "progress")
    ),
    training(("checkpoint_dir", "3"), "checkpoint_dir=3", checkpoint_dir=3),
    training(("checkpoints", "''"), "checkpoint_dir=''", checkpoint_dir=""),
    training(("resume", "checkpoint_dir"), "resume from nowhere", resume=True),
    training(("overwrite", "checkpoint_dir"), "overwrite of nothing", overwrite=True),
]


@table(MISTAKEN)
def test_training_is_refused_before_work_starts(call, words, monkeypatch):
    def too_late(*_):
        raise AssertionError("work started")

    monkeypatch.setattr(trainer, "collect", too_late)
    the_sentence(call, words)


def rewarding(words: Words, what: str, reward) -> Row:
    return training(words, f"reward {what}", reward=reward)


@table(
    [
        *(
            rewarding(("judge", "number"), f"returns {label}", returning(value))
            for label, value in BAD_REWARDS.items()
        ),
        rewarding(("raising raised RuntimeError: the judge",), "raises", raising),
        rewarding(
            ("take **columns",), "takes no columns", lambda prompts, completions: 1
        ),
    ]
)
def test_what_only_the_first_rollout_can_show(call, words):
    the_sentence(call, words)


def evaluation(words: Words, function=evaluate, **changed) -> Row:
    label = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    given = {"problems": 4, "max_new_tokens": 4} | changed
    return Row(
        f"{function.__name__}({label})",
        lambda: function(
            given.get("model", model()),
            given.get("tokenizer", TOKENIZER),
            **{k: v for k, v in given.items() if k not in ("model", "tokenizer")},
        ),
        words,
    )


def sampling(words: Words, prompts=("1+2=",), **changed) -> Row:
    label = ", ".join(f"{n}={v!r}" for n, v in {"prompts": prompts, **changed}.items())
    rest = {k: v for k, v in changed.items() if k not in ("model", "tokenizer")}
    return Row(
        f"sample({label})",
        lambda: rollout.sample(
            changed.get("model", model()),
            changed.get("tokenizer", TOKENIZER),
            prompts,
            **{"max_new_tokens": 4, **rest},
        ),
        words,
    )


def numbers(row: Callable[..., Row], ranges: dict[str, dict]) -> list[Row]:
    """Every number of a function with everything that it must not be."""
    return [
        row((name, "must be", "got"), **{name: value})
        for name, more in ranges.items()
        for value in [*WRONG.values(), None, True, *more.values()]
    ]


BAD_PROMPTS = (None, 3, "1+2=", [], [""], [3], [None], ["1+2=", ["3"]], ["1" * 200])
SEED = {"negative": -1, "a fraction": 1.5}
COUNTS = {"max_new_tokens": NOT_A_COUNT, "temperature": NOT_POSITIVE, "seed": SEED}
CUT = {"top_k": NOT_A_COUNT, "top_p": NOT_A_SHARE, "min_p": NOT_A_SHARE}
MEASURED = {"problems": NOT_A_COUNT, "samples": NOT_A_COUNT, **COUNTS}


def scored(words: Words, **changed) -> Row:
    return evaluation(words, scores, **changed)


def cut(row: Callable[..., Row]) -> list[Row]:
    """What may be drawn: None draws from all, and a nucleus of 0 holds no token."""
    bad = [r for r in numbers(row, CUT) if "=None" not in r.what]
    return [*bad, row(("top_p must be a number in (0, 1] or None, got 0",), top_p=0)]


SAMPLES = [
    *numbers(sampling, {"group_size": NOT_A_COUNT, **COUNTS}),
    *numbers(evaluation, MEASURED),
    *numbers(scored, MEASURED),
    *(made for row in (sampling, evaluation, scored) for made in cut(row)),
    *(evaluation(("batch must be", "got"), batch=b) for b in (0, -1, 1.5, "all", NAN)),
    *(sampling(("prompt",), prompts) for prompts in BAD_PROMPTS),
    *(
        row((name, repr(value)), **{name: value})
        for row in (sampling, evaluation)
        for name in ("model", "tokenizer")
        for value in (None, "tiny", 3)
    ),
    sampling(("routing", "'R3'"), routing="R3"),
    sampling(("token 18", "only 18"), ("<extra>",), tokenizer=larger()),
    sampling(("causal language model", "Linear"), model=torch.nn.Linear(2, 2)),
    evaluation(("task must have", "'arithmetic'"), task="arithmetic"),
    *(
        Row(
            f"log_probs({label})",
            lambda m=m, r=r, t=t: scoring.log_probs(m and model(), r and sampled(), t),
            words,
        )
        for label, m, r, t, words in (
            ("temperature=0", 1, 1, 0, ("temperature must be", "0")),
            ("temperature=-1", 1, 1, -1.0, ("temperature must be", "-1")),
            ("temperature=NaN", 1, 1, NAN, ("temperature must be", "nan")),
            ("temperature=∞", 1, 1, INF, ("temperature must be", "inf")),
            ("temperature=text", 1, 1, "hot", ("temperature must be", "'hot'")),
            ("temperature=None", 1, 1, None, ("temperature must be", "None")),
            ("model=None", None, 1, 1.0, ("model must be", "None")),
            ("rollout=None", 1, None, 1.0, ("rollout must be", "None")),
        )
    ),
    Row(
        "log_probs of text",
        lambda: scoring.log_probs(model(), "1+2=#3"),
        ("rollout must be a Rollout", "'1+2=#3'"),
    ),
    Row(
        "values of a policy",
        lambda: scoring.values(model(), sampled()),
        ("critic", "make_critic"),
    ),
    Row(
        "values(None)",
        lambda: scoring.values(None, sampled()),
        ("critic must be", "None"),
    ),
    Row(
        "values of text",
        lambda: scoring.values(models.make_critic(model()), "1+2=#3"),
        ("rollout must be a Rollout",),
    ),
    Row(
        "routed, dense",
        lambda: moe.routed(model()).__enter__(),
        ("has no router", "tiny-moe"),
    ),
    *(
        Row(
            f"routed({name}={value!r})",
            lambda given={name: value}: moe.routed(random_moe(), **given).__enter__(),
            (name, "must"),
        )
        for name, values in {
            "noise": (-0.1, NAN, INF, "loud", None, [1], True),
            "experts": ("R3", [1], 3, torch.zeros(1, 3, 2, 2), torch.zeros(3).long()),
            "generator": (0, "seed", [1]),
        }.items()
        for value in values
    ),
    Row(
        "routed: another number of layers",
        lambda: moe.routed(
            random_moe(), experts=torch.zeros(1, 3, 1, 2, dtype=torch.int16)
        ).__enter__(),
        ("experts of 1 layers", "2 routers"),
    ),
    *(
        Row(f"routed({value!r})", lambda v=value: moe.routed(v).__enter__(), ("model",))
        for value in (None, "tiny-moe")
    ),
]


@table(SAMPLES)
def test_a_sampler(call, words):
    the_sentence(call, words)


def score(reward, prompts=("1+2=",), completions=("#3",), columns=None):
    given = {"answer": [3]} if columns is None else columns
    return rewards.score(reward, prompts, completions, given)


BUILT = [
    *(
        Row(f"score(reward={value!r})", lambda v=value: score(v), ("reward",))
        for value in (None, "accuracy", 3)
    ),
    Row("score: no columns", lambda: score(len, columns=3), ("columns", "3")),
    Row("score: prompts", lambda: score(max, prompts=None), ("prompts", "None")),
    Row("score: completions", lambda: score(max, completions=3), ("completions", "3")),
    *(
        Row(
            f"check_rows: {label}",
            lambda rows=rows: rewards.check_rows(rows, "sample"),
            ("task.sample", "prompt"),
        )
        for label, rows in BAD_ROWS.items()
        if label != "too few"
    ),
    *(
        Row(
            f"correctness: answer={value!r}",
            lambda v=value: Arithmetic.reward(["1+2="], ["#3"], answer=v),
            ("answer",),
        )
        for value in (None, 3, [None], ["three"], [3.5])
    ),
    *(
        Row(f"verify(answer={value!r})", lambda v=value: verify("#3", v), ("answer",))
        for value in (None, "three", 3.5, NAN, [3])
    ),
    *(
        Row(
            f"build({value!r})",
            lambda v=value: models.build(v, TOKENIZER),
            ("preset", said),
        )
        for value, said in (
            ("tinny", "did you mean 'tiny'"),
            ("", "''"),
            (None, "None"),
            (3, "3"),
        )
    ),
    Row("build([])", lambda: models.build([], TOKENIZER), ("preset", "[]")),
    *(
        Row(
            f"build: tokenizer={value!r}",
            lambda v=value: models.build("tiny", v),
            ("tokenizer", repr(value)),
        )
        for value in (None, "tiny", 3)
    ),
    *(
        Row(
            f"build: seed={value!r}",
            lambda v=value: models.build("tiny", TOKENIZER, v),
            ("seed must be", "got"),
        )
        for value in (-1, 1.5, NAN, INF, None, "one", [1], True)
    ),
    *(
        Row(
            f"make_critic: seed={value!r}",
            lambda v=value: models.make_critic(model(), v),
            ("seed must be", "got"),
        )
        for value in (-1, 1.5, NAN, None, "one", [1])
    ),
    *(
        Row(
            f"make_critic({value!r})",
            lambda v=value: models.make_critic(v),
            ("policy",),
        )
        for value in (None, "tiny", 3)
    ),
    *(
        Row(
            f"pick_device({value!r})",
            lambda v=value: models.pick_device(v),
            ("device", repr(value)),
        )
        for value in ("gpu", "", None, 3, "cuda:-1", "cpu:x", ["cpu"], NAN)
    ),
    *(
        Row(f"warm_start({value!r})", lambda v=value: warm_start(v), ("settings",))
        for value in ("tiny", 3, {"preset": "tiny"}, TrainConfig())
    ),
    *(
        Row(
            f"warm_start(device={value!r})",
            lambda v=value: warm_start(device=v),
            ("device", repr(value)),
        )
        for value in ("gpu", None, 3)
    ),
    *(
        Row(
            f"warm_start(fresh={value!r})",
            lambda v=value: warm_start(fresh=v),
            ("fresh must be True or False",),
        )
        for value in ("no", None, [1])
    ),
    *(
        Row(
            f"prepare({name}={value!r})",
            lambda given={name: value}: prepare(
                **{"algorithm": "grpo", "config": SMALL, **given}
            ),
            (name,),
        )
        for name, value in (
            ("algorithm", "gropo"),
            ("algorithm", 3),
            ("config", None),
            ("config", {}),
            ("task", "arithmetic"),
            ("reward", "accuracy"),
            ("model", "tiny"),
            ("tokenizer", "tiny"),
        )
    ),
]


@table(BUILT)
def test_what_a_run_is_made_of(call, words):
    the_sentence(call, words)


# Files. Each makes something wrong in an empty folder, and then reads or writes it.


def empty(path: Path) -> None:
    path.write_bytes(b"")


def prose(path: Path) -> None:
    path.write_text("Dear reader,\nthis is something else.\n")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 8)


def a_folder(path: Path) -> None:
    path.mkdir()


def other_tensors(path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, path)


def half(path: Path) -> None:
    """A checkpoint cut off in the middle."""
    run = {key: None for key in checkpoint.KEYS} | {"rows": [0.0] * 1000}
    checkpoint.save(path.parent, run)
    (path.parent / checkpoint.NAME).rename(path)
    path.write_bytes(path.read_bytes()[:-500])


def nothing(path: Path) -> None:
    pass


def by_length(completions, **_):
    """A reward that an untrained policy can learn from."""
    return list(map(len, completions))


def small_train(algorithm="grpo", rollouts=1, **given):
    config = replace(SMALL, rollouts=rollouts)
    given = {"config": config, "model": random_model(), "reward": by_length} | given
    return train(algorithm, tokenizer=TOKENIZER, progress=False, **given)


def write_text(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text)


READERS = {
    "checkpoint.load": (
        lambda folder: checkpoint.load(folder, torch.device("cpu")),
        checkpoint.NAME,
        (nothing, empty, prose, binary, a_folder, other_tensors, half),
    ),
    "train(resume)": (
        lambda folder: small_train(checkpoint_dir=folder, resume=True),
        checkpoint.NAME,
        (nothing, empty, prose, binary, a_folder, other_tensors, half),
    ),
    "History.from_csv": (
        lambda folder: History.from_csv(folder / "h.csv"),
        "h.csv",
        (nothing, empty, prose, binary, a_folder, other_tensors),
    ),
    "load": (
        lambda folder: models.load(folder / "m"),
        "m",
        (nothing, empty, prose, binary, a_folder),
    ),
    "load, its config": (
        lambda folder: models.load(folder),
        "config.json",
        (nothing, empty, prose, binary, a_folder, write_text("{}"), write_text("[]")),
    ),
}


def saved_policy(folder: Path, damaged: str, damage: Callable) -> None:
    """A policy on disk with one of its files replaced."""
    random_model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    (folder / damaged).unlink()
    damage(folder / damaged)


def of_policy(damaged: str, damage: Callable) -> Callable[[Path], Any]:
    def call(folder: Path):
        saved_policy(folder, damaged, damage)
        models.load(folder)

    return call


def below_a_file(folder: Path) -> Path:
    """A place that nobody can write to, root neither."""
    (folder / "file").write_text("in the way")
    return folder / "file" / "below"


def another_process(folder: Path):
    """What a second process does: it finds the folder locked."""
    with FileLock(folder / ".lock"):
        small_train(checkpoint_dir=folder)


def twice(folder: Path):
    small_train(checkpoint_dir=folder)
    small_train(checkpoint_dir=folder)


def resumed(**changed) -> Callable[[Path], Any]:
    """Save one run, go on with another."""

    def call(folder: Path):
        small_train(checkpoint_dir=folder)
        small_train(rollouts=2, checkpoint_dir=folder, resume=True, **changed)

    return call


def salt(value: str) -> Callable[[Path], Any]:
    def call(folder: Path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REFIMPL_SALT", value)
            small_train()

    return call


ONE_CURVE = {"grpo": curves.curve("grpo")}
WRITERS: dict[str, tuple[Callable[[Path], Any], Words]] = {
    "checkpoints below a file": (
        lambda folder: small_train(checkpoint_dir=below_a_file(folder)),
        ("cannot write checkpoints to", "below", "choose a folder"),
    ),
    "a checkpoint folder that is a file": (
        lambda folder: small_train(checkpoint_dir=below_a_file(folder).parent),
        ("cannot write checkpoints to", "choose a folder"),
    ),
    "a checkpoint folder in use": (
        another_process,
        ("another process trains in", "of its own"),
    ),
    "a checkpoint in the way": (
        twice,
        ("holds a checkpoint already", "resume", "overwrite"),
    ),
    "resume with another method": (
        resumed(algorithm="ppo"),
        ("a run of 'grpo', not of 'ppo'",),
    ),
    "resume with other settings": (
        resumed(config=replace(SMALL, seed=7)),
        ("seed was 0, now 7",),
    ),
    "resume with another task": (
        resumed(task=Arithmetic(max_terms=3)),
        ("task", "max_terms=3"),
    ),
    "resume with another reward": (
        resumed(reward=Arithmetic.reward),
        ("reward", "by_length", "correctness"),
    ),
    "a salt that is a word": (salt("pepper"), ("REFIMPL_SALT must be", "'pepper'")),
    "a salt below 0": (salt("-1"), ("REFIMPL_SALT must be", "'-1'")),
    "a salt that is a fraction": (salt("1.5"), ("REFIMPL_SALT must be", "'1.5'")),
    "a history below a file": (
        lambda folder: History("grpo").to_csv(below_a_file(folder)),
        ("cannot write the history to", "below"),
    ),
    "a history that is a folder": (
        lambda folder: History("grpo").to_csv(folder),
        ("cannot write the history to", "folder"),
    ),
    "a history with no path": (
        lambda folder: History("grpo").to_csv(None),
        ("path must be", "None"),
    ),
    "a history from no path": (
        lambda folder: History.from_csv(None),
        ("path must be", "None"),
    ),
    "curves below a file": (
        lambda folder: curves.to_csv(below_a_file(folder), ONE_CURVE),
        ("cannot write the curves to", "below"),
    ),
    "curves in a folder": (
        lambda folder: curves.to_csv(folder, ONE_CURVE),
        ("cannot write the curves to", "folder"),
    ),
    "curves with no path": (
        lambda folder: curves.to_csv(3, ONE_CURVE),
        ("path must be", "3"),
    ),
    "curves that are none": (
        lambda folder: curves.to_csv(folder / "c.csv", {"grpo": [1, 2]}),
        ("curves", "Curve"),
    ),
    "curves that are a list": (
        lambda folder: curves.to_csv(folder / "c.csv", [curves.curve("grpo")]),
        ("curves must be a dictionary",),
    ),
    "a bench below a file": (
        lambda folder: bench.bench(1, below_a_file(folder)),
        ("cannot write the measurements to", "below"),
    ),
    "a bench of an unknown method": (
        lambda folder: bench.bench(1, folder / "b.json", names=["gropo"]),
        ("did you mean 'grpo'",),
    ),
    "a bench of no notebooks": (
        lambda folder: bench.bench(1, folder / "b.json", folder),
        ("no notebooks in",),
    ),
    **{
        f"a bench of {value!r} seeds": (
            lambda folder, value=value: bench.bench(value, folder / "b.json"),
            ("seeds must be a whole number ≥ 1", repr(value)),
        )
        for value in (0, -1, 1.5, NAN, "ten", None)
    },
    "a cell of an unknown arm": (
        lambda folder: grid.Cell("GROP"),
        ("unknown arm 'GROP', did you mean 'GRPO'", "CISPO 5"),
    ),
    "a cell without the routers it needs": (
        lambda folder: grid.Cell("RSPO"),
        ("RSPO needs a mixture of experts", "world='moe'"),
    ),
    "a cell of an unknown world": (
        lambda folder: grid.Cell("GRPO", world="sort"),
        ("unknown world 'sort', did you mean 'sorting'", "moe"),
    ),
    "a cell of an unknown K": (
        lambda folder: grid.Cell("GRPO", updates=3),
        ("K must be one of 1, 4, 16", "3"),
    ),
    "a cell with a rate of 0": (
        lambda folder: grid.Cell("GRPO", rate=0.0),
        ("learning_rate must be a number > 0",),
    ),
    **{
        f"settings of K = {value!r}": (
            lambda folder, value=value: grid.settings(updates=value),
            ("K must be one of 1, 4, 16", repr(value)),
        )
        for value in (0, 2, NAN, "4", None)
    },
    **{
        f"a policy with {damage.__name__} {file}": (of_policy(file, damage), said)
        for file, said in {
            "model.safetensors": ("no causal language model",),
            "config.json": ("no causal language model",),
            "tokenizer.json": ("tokenizer",),
            "tokenizer_config.json": ("tokenizer",),
        }.items()
        for damage in (nothing, empty, prose, binary)
        # A fast tokenizer can do without the second of its files, if it is whole:
        if not (file == "tokenizer.json" and damage is nothing)
    },
    "load(None)": (lambda folder: models.load(None), ("path must be", "None")),
    "load(3)": (lambda folder: models.load(3), ("path must be", "3")),
    "load('')": (lambda folder: models.load(""), ("no causal language model", "''")),
    "checkpoint.load(None)": (
        lambda folder: checkpoint.load(None, "cpu"),
        ("folder must be", "None"),
    ),
    "checkpoint.load(device=None)": (
        lambda folder: checkpoint.load(folder, None),
        ("device must be", "None"),
    ),
}


def reading(name: str, call: Callable, file: str, damage: Callable) -> Row:
    def on(folder: Path):
        damage(folder / file)
        call(folder)

    words = () if file in ("m", "config.json") else (file,)
    return Row(f"{name}, {damage.__name__}", on, words)


ON_DISK = [
    *(
        reading(name, call, file, damage)
        for name, (call, file, damages) in READERS.items()
        for damage in damages
    ),
    *(Row(what, call, words) for what, (call, words) in WRITERS.items()),
]
for number, row in enumerate(ON_DISK):  # two damages may have one name
    if row.what in [other.what for other in ON_DISK[:number]]:
        ON_DISK[number] = row._replace(what=f"{row.what} {number}")


@table(ON_DISK)
def test_a_file(call, words, tmp_path):
    the_sentence(lambda: call(tmp_path), words)


# A cache that is damaged heals itself, and says so

QUICK = WarmStart(skill_steps=1, habit_steps=1, batch_size=2)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


CACHE_DAMAGE = {
    f"{file}, {damage.__name__}": (file, damage)
    for file in ("model.safetensors", "config.json", "tokenizer.json", "start.json")
    for damage in (cut, empty, prose, binary)
} | {
    "no model.safetensors": ("model.safetensors", Path.unlink),
    "no config.json": ("config.json", Path.unlink),
    "start.json is a list": ("start.json", write_text("[]")),
    "start.json is null": ("start.json", write_text("null")),
    "start.json is {}": ("start.json", write_text("{}")),
}


@pytest.mark.parametrize(("file", "damage"), CACHE_DAMAGE.values(), ids=CACHE_DAMAGE)
def test_a_damaged_cache_heals_itself_and_says_so(file, damage, tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path))
    losses = warm_start(QUICK)[2]
    damage(QUICK.folder() / file)
    with pytest.warns(UserWarning, match="damaged .* trained again") as caught:
        assert warm_start(QUICK)[2] == losses
    assert "\n" not in str(caught[0].message)
    assert warm_start(QUICK)[2] == losses  # whole again: no warning, or pytest fails


def test_a_cache_that_cannot_be_written_costs_a_warning_only(tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_CACHE", str(below_a_file(tmp_path)))
    with pytest.warns(UserWarning, match="set REFIMPL_CACHE to a folder"):
        warm_start(QUICK)


def test_a_disk_that_fills_up_ends_the_run_with_a_sentence(tmp_path):
    """The checkpoint's scratch file goes to a device that is always full."""
    (tmp_path / f"{checkpoint.NAME}.tmp").symlink_to("/dev/full")
    with pytest.warns(UserWarning, match="No space left") as caught:
        history = small_train(checkpoint_dir=tmp_path)
    assert len(history) == 1 and history.ended is not None
    assert "\n" not in str(caught[0].message)


def test_a_disk_that_fills_up_costs_one_output_and_not_the_other(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(Arithmetic, "reward", staticmethod(by_length))
    (tmp_path / "h.csv.tmp").symlink_to("/dev/full")
    history, policy = str(tmp_path / "h.csv"), str(tmp_path / "policy")
    assert main(command("--history", history, "--save", policy)) == 2
    printed = capsys.readouterr()
    assert "h.csv' could not be written ([Errno 28]" in printed.err.splitlines()[-1]
    assert "accuracy" in printed.out.splitlines()[-1] and "Trace" not in printed.err
    assert models.load(policy)


# The command line

SIZES = "prompts_per_rollout=4 group_size=2 max_new_tokens=4 minibatches=2".split()
SETS = [word for pair in [*SIZES, "eval_problems=4"] for word in ("--set", pair)]


def command(*words: str, algorithm: str = "grpo") -> list[str]:
    return ["train", "--algorithm", algorithm, "--rollouts", "1", *SETS, *words]


class Line(NamedTuple):
    what: str
    command: list[str]
    words: Words


def of_sets() -> list[Line]:
    """Every setting, and every hyperparameter of every algorithm, by `--set`."""
    given = [("grpo", n, k) for n, k in annotations(TrainConfig).items()]
    given += [(a.name, name, kind) for a, name, kind in EVERY_HYPERPARAMETER]
    return [
        Line(
            f"{algorithm} --set {name}={text}",
            command("--set", f"{name}={text}", algorithm=algorithm),
            (f"{name} must be ", f"got {text!r}"),
        )
        for algorithm, name, kind in given
        if name != "hyperparameters"
        for text in bad_texts(kind).values()
    ]


TRAIN = ["train", "--algorithm", "grpo"]
LINES = [
    *of_sets(),
    Line("an unknown command", ["trian"], ("trian", "train")),
    Line("no method", ["train"], ("--algorithm",)),
    Line("an unknown method", ["train", "--algorithm", "gropo"], ("mean 'grpo'",)),
    Line("a method in capitals", ["train", "--algorithm", "SAPO"], ("mean 'sapo'",)),
    Line("an empty method", ["train", "--algorithm", ""], ("unknown algorithm ''",)),
    Line("an unknown flag", [*TRAIN, "--rolouts", "3"], ("--rolouts",)),
    Line("--set without =", command("--set", "epsilon"), ("name=value", "'epsilon'")),
    Line("--set without value", command("--set", "epsilon="), ("name=value",)),
    Line("--set without name", command("--set", "=3"), ("''",)),
    Line("--set of nothing", command("--set"), ("--set",)),
    Line("--set nearly", command("--set", "epsilom=1"), ("mean 'epsilon'",)),
    Line("--set rolouts", command("--set", "rolouts=1"), ("mean 'rollouts'",)),
    Line(
        "--set hyperparameters",
        command("--set", "hyperparameters={}"),
        ("'hyperparameters'", "grpo"),
    ),
    Line("--set of another method", command("--set", "tau_pos=1"), ("tau_pos", "grpo")),
    Line("--set device", command("--set", "device=gpu"), ("unknown device 'gpu'",)),
    *(
        Line(
            f"{flag} {value}",
            [*TRAIN, flag, value],
            (flag[2:].replace("-", "_"), value),
        )
        for flag, values in {
            "--rollouts": ("0", "-1", "1.5", "many", "nan", "inf", "None"),
            "--seed": ("-1", "1.5", "one", "nan", "None"),
            "--dtype": ("int8", "float", "None"),
            "--device": ("gpu", "tpu"),
            "--preset": ("tinny", "large"),
            "--task": ("arithmetics", "chess"),
        }.items()
        for value in values
    ),
    Line("--model nowhere", [*TRAIN, "--model", "no/such"], ("no causal", "no/such")),
    Line("--model a folder", [*TRAIN, "--model", "."], ("no causal language model",)),
    Line("--model a file", [*TRAIN, "--model", "file"], ("no causal language model",)),
    Line("--resume alone", command("--resume"), ("resume", "checkpoint_dir")),
    Line("--overwrite alone", command("--overwrite"), ("overwrite", "checkpoint_dir")),
    Line(
        "--resume nothing",
        command("--resume", "--checkpoint-dir", "empty"),
        ("nothing to resume", "empty"),
    ),
    Line("--resume yes", command("--resume", "yes"), ("yes",)),
    *(
        Line(f"{flag} {place}", command(flag, place), (f"cannot write {what}", place))
        for flag, what in {
            "--history": "the history",
            "--save": "the policy",
            "--checkpoint-dir": "checkpoints",
        }.items()
        for place in ("file/below", "file/be/low")
    ),
    Line("--history a folder", command("--history", "empty"), ("is a folder",)),
    Line("--save a file", command("--save", "file"), ("cannot write the policy",)),
    Line("RSPO, dense", command(algorithm="rspo"), ("mixture of experts",)),
    Line(
        "GRPO with one update",
        command("--set", "minibatches=1"),
        ("allow_on_policy=True",),
    ),
    Line(
        "groups of one", command("--set", "group_size=1"), ("group_size must be ≥ 2",)
    ),
    Line(
        "prompts that cannot be split",
        command("--set", "prompts_per_rollout=3"),
        ("prompts_per_rollout a multiple of minibatches",),
    ),
    Line(
        "responses longer than the model",
        command("--set", "max_new_tokens=999"),
        ("128 positions", "999"),
    ),
    Line("warm-start: a preset", ["warm-start", "--preset", "tinny"], ("tinny",)),
    Line("warm-start: a world", ["warm-start", "--task", "chess"], ("chess",)),
    Line("warm-start: a seed", ["warm-start", "--seed", "x"], ("seed must be", "'x'")),
    Line("warm-start: no seed", ["warm-start", "--seed", "-1"], ("seed must be",)),
    Line("warm-start: a device", ["warm-start", "--device", "gpu"], ("'gpu'",)),
    Line("curves: no method", ["curves"], ("--algorithm",)),
    Line("curves: a method", ["curves", "--algorithm", "gropo"], ("mean 'grpo'",)),
    *(
        Line(
            f"curves: {what}",
            ["curves", "--algorithm", "ppo", *more],
            words,
        )
        for what, more, words in (
            ("epsilon", ["--set", "epsilon=-1"], ("epsilon must be", "'-1'")),
            ("epsilon=nan", ["--set", "epsilon=nan"], ("epsilon must be", "'nan'")),
            ("a training setting", ["--set", "rollouts=3"], ("rollouts",)),
            ("nearly", ["--set", "epsilom=1"], ("mean 'epsilon'",)),
            ("a folder", ["--out", "empty"], ("cannot write the curves", "folder")),
            ("below a file", ["--out", "file/c.csv"], ("cannot write the curves",)),
        )
    ),
    *(
        Line(f"bench: {what}", ["bench", *more], words)
        for what, more, words in (
            ("seeds 0", ["--seeds", "0"], ("seeds must be a whole number ≥ 1", "0")),
            ("seeds -1", ["--seeds", "-1"], ("seeds must be a whole number ≥ 1",)),
            ("seeds x", ["--seeds", "x"], ("seeds", "whole number ≥ 1", "'x'")),
            ("a method", ["--algorithms", "gropo"], ("mean 'grpo'",)),
            ("a folder", ["--out", "empty"], ("is a folder",)),
            ("below a file", ["--out", "file/b.json"], ("cannot write",)),
            ("no chapters", ["--chapters", "empty"], ("no notebooks in 'empty'",)),
            ("no such chapters", ["--chapters", "none"], ("no notebooks in 'none'",)),
        )
    ),
    *(
        Line(f"evidence: {what}", ["evidence", "run", *more], words)
        for what, more, words in (
            ("workers 0", ["--workers", "0"], ("workers must be a whole number ≥ 1",)),
            ("workers x", ["--workers", "x"], ("workers", "whole number ≥ 1", "'x'")),
            ("a claim", ["--claims", "17"], ("unknown claim '17'",)),
            ("a study", ["--claims", "stail"], ("unknown claim", "mean 'stale'")),
            ("below a file", ["--out", "file/e"], ("cannot write",)),
        )
    ),
]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(line.command, line.words) for line in LINES],
    ids=[line.what for line in LINES],
)
def test_the_command_line(words, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "empty").mkdir()
    the_line(words, expected, capsys)
    left = {p for p in tmp_path.rglob("*") if p.name != ".lock"}
    assert left == {tmp_path / "file", tmp_path / "empty"}, "something was written"
    assert (tmp_path / "file").read_text() == "in the way"


# NumPy and torch scalars are numbers


def scalars(value) -> list:
    """One number as NumPy and torch hold it."""
    if isinstance(value, bool):
        return [np.bool_(value), np.array(value), tensor(value)]
    if isinstance(value, int):
        return [np.int64(value), np.array(value), tensor(value)]
    return [np.float64(value), np.array(value), tensor(value, dtype=torch.float64)]


def defaults(cls) -> dict:
    return {f.name: getattr(cls(), f.name) for f in fields(cls)}


NUMBERS = [
    (cls, name, scalar, value)
    for cls in CHECKED
    for name, value in defaults(cls).items()
    if isinstance(value, int | float)
    for scalar in scalars(value)
]


@pytest.mark.parametrize(("cls", "name", "scalar", "value"), NUMBERS)
def test_a_scalar_becomes_a_plain_number(cls, name, scalar, value):
    found = getattr(cls(**{name: scalar}), name)
    assert type(found) is type(value) and found == value
    json.dumps(found)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_scalar_is_a_hyperparameter(algorithm):
    for name, value in algorithm.defaults.items():
        value = 2.0 if value is None else value
        for scalar in scalars(value):
            given = algorithm.check_hyperparameters({name: scalar})
            assert type(given[name]) is type(value) and given[name] == value
            config = TrainConfig(hyperparameters={name: scalar})
            assert type(config.hyperparameters[name]) is type(value)


@pytest.mark.parametrize("entry", FUNCTIONS, ids=lambda entry: entry[0].__qualname__)
def test_a_scalar_is_an_argument(entry):
    function, given, _ = entry
    expected = repr(function(**given))
    for name, value in given.items():
        if isinstance(value, int | float):
            for scalar in scalars(value):
                assert repr(function(**{**given, name: scalar})) == expected


def test_a_scalar_is_an_argument_of_the_sampler():
    given = {"group_size": 2, "max_new_tokens": 3, "temperature": 0.5, "seed": 3}
    plain = rollout.sample(model(), TOKENIZER, PROMPTS, **given)
    for scalar in range(3):
        same = {name: scalars(value)[scalar] for name, value in given.items()}
        again = rollout.sample(model(), TOKENIZER, PROMPTS, **same)
        assert torch.equal(plain.logp, again.logp)


@pytest.mark.parametrize("seed", [2**31, 2**63, 2**70])
def test_any_whole_number_is_a_seed(seed):
    rollout.sample(model(), TOKENIZER, PROMPTS, max_new_tokens=2, seed=seed)
    Arithmetic().sample(2, seed)
    models.build("tiny", TOKENIZER, seed)


def test_integers_are_rewards():
    for function in (advantages.group_relative, advantages.leave_one_out):
        found = function((REWARDS * 2).long(), GROUP)
        assert torch.equal(found, function(REWARDS * 2, GROUP))


# The table


def test_the_table_is_whole():
    """At least 400 rows, none twice, all of them refused in one sentence."""
    names = [row.what for row in [*TABLE, *LINES]]
    assert len(names) == len(set(names))
    assert len(names) >= 400
    print(f"{len(names)} bad inputs, {len(NUMBERS)} good scalars")


def test_every_public_function_of_the_formulas_is_in_the_table():
    named = {row.what for row in TABLE}
    for module in (advantages, importance, kl, normalisers):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and name[0] != "_"
            if own and name not in ("apply", "ratio"):
                assert any(what.startswith(f"{name}(") for what in named), name
