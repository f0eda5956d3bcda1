"""Bad input: whatever a reader hands in wrong gets one clear sentence, before any work.

Most rows are made: every setting, hyperparameter and argument of a front door, each
with what its type does not allow and with what `OUT_OF_RANGE` says that its number must
not be. The others are written out: words of the sentence, and what is handed in. Those
of the command line are in `test_cli.py`.

Left out: an error inside a function of the reader's (its traceback shows where), and a
task whose rows change later on.
"""

import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import Tensor, nn, tensor
from transformers import AutoModelForCausalLM, GPT2Config, MambaConfig

import refimpl as rl
from refimpl import ALGORITHMS, History, TrainConfig, UserError, WarmStart, checkpoint
from refimpl.checks import annotations
from refimpl.command_line import FIELDS, LEFT, parse_settings
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.lab import grid
from refimpl.models import build, check_pair, make_critic, pick_device
from refimpl.prepare import check_fit
from refimpl.real.loading import load
from refimpl.real.rewards import Sum
from refimpl.rewards import overlong_punishment, score
from refimpl.scoring import values
from refimpl.starts import cached
from refimpl.tasks import Arithmetic, Sorting, make_tokenizer, verify
from tests.worlds import PROMPTS, SMALL, TOKENIZER, TRAIN, fixed_noise, random_model

NAN, INF = math.nan, math.inf


def refused(words: str, call: Callable, *args, **given) -> None:
    """`call` ends in one sentence of ours that holds the parts of `words`."""
    with pytest.raises(UserError) as caught:
        call(*args, **given)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1000
    assert [part for part in words.split(" … ") if part not in said] == [], said


# What a type does not allow, and what a number must not be

# A value, and the types that allow it:
WRONG: list[tuple[Any, set]] = [("nonsense", {str, Path}), (1.5, {float})]
WRONG += [(1, {int, float}), (True, {bool}), (None, {NoneType}), (NAN, set())]
WRONG += [(INF, set()), (-INF, set()), ([1], {Collection}), (np.ones(2), {Collection})]
WRONG += [({}, {dict, Collection}), (len, {Callable}), (int, {Callable})]
TEXT: list[tuple[str, set]] = [(t, set()) for t in ("nonsense", "nan", "-inf", "[1]")]
TEXT += [("None", {NoneType}), ("True", {bool}), ("1.5", {float})]

NUMBERS = {
    (0, -1): "rollouts prompts_per_rollout group_size max_new_tokens top_k epochs "
    "max_sampling_rounds minibatches micro_batch_size max_length eval_every "
    "eval_problems eval_samples checkpoint_every skill_steps habit_steps batch_size "
    "n problems samples k",
    (-1,): "seed sampler_delay samples_every",
    (0, -0.5): "temperature max_rollout_weight router_rate learning_rate value_clip "
    "skill_learning_rate habit_learning_rate buffer epsilon epsilon_low epsilon_high "
    "mask_epsilon_low mask_epsilon_high tau_pos tau_neg",
    (-0.5,): "router_noise weight_decay entropy_bonus beta",
    (-0.5, 1.5): "overlong_share gamma lam",
    (0, -0.5, 1.5): "top_p",
    (1, 0.5): "dual_clip",
    (0.5,): "max_ratio",
    (1, 10): "min_terms max_terms",
    (1, 9): "min_items max_items",
    (): "level advantage answer",
}
OUT_OF_RANGE = {name: bad for bad, names in NUMBERS.items() for name in names.split()}


def parts(kind) -> set:
    """The plain types that an annotation allows."""
    if get_origin(kind) is Annotated:
        return parts(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return set().union(*map(parts, get_args(kind)))
    return {get_origin(kind) or kind}


def bad(kind, values=WRONG) -> list:
    """What an argument of this type must refuse, whatever its range."""
    types = parts(kind)
    return [value for value, allow in values if not types & (allow | {Any})]


def bad_tensors(name: str, good: Tensor) -> Iterator[tuple[str, Any]]:
    """Words, and what stands in place of a tensor: other things, others of its kind."""
    for other in ("nonsense", 1.0, good.tolist(), good.numpy()):
        yield f"{name} must be … Tensor … got ", other
    yield "must be … Tensor … got … of shape", good[None]
    if name not in ("logp", "scores", "length", "ratios"):  # the first says what B is
        yield "must be … of shape … beside", torch.cat([good, good[:1]])
    for value in (NAN, INF, -INF):
        spoilt = good.clone()
        spoilt.view(-1)[0] = value
        yield "mask … 0 and 1" if name == "mask" else f"{name} is {value} at ", spoilt
    for other in (good / 2, good * 2, -good) if name == "mask" else ():
        yield "mask must hold only 0 and 1", other
    if name not in ("mask", "weight"):
        yield f"{name} must be … got torch.bool", good.bool()
    if name in ("logp", "old_logp", "scores", "ratios"):
        yield f"{name} must be … Float[Tensor … got torch.int64", good.long()


# The front doors, each with arguments that it takes

MODEL = random_model()
SAMPLED = rl.sample(MODEL, TOKENIZER, PROMPTS, group_size=2, max_new_tokens=6)
HISTORY = History("grpo", [{"reward": 1.0}])
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
    "to_csv": (HISTORY.to_csv, {}),
    "samples_to_jsonl": (HISTORY.samples_to_jsonl, {}),
    "from_csv": (History.from_csv, {}),
    "a world's sample": (Arithmetic().sample, WORLD),
    "held_out": (Arithmetic().held_out, WORLD),
    "demonstrations": (Arithmetic().demonstrations, {**WORLD, "mix": (0.3, 0.4, 0.3)}),
    "correctness": (Arithmetic.reward, {**ANSWERS, "answer": [3]}),
    "sortedness": (Sorting.reward, {**ANSWERS, "answer": ["3"]}),
    "verify": (verify, {"response": "#3", "answer": 3}),
    "load": (load, {}),
    "TrainConfig": (TrainConfig, {}),
    "WarmStart": (WarmStart, {}),
    "Arithmetic": (Arithmetic, {}),
    "Sorting": (Sorting, {}),
}
METHODS = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def kinds(function: Callable) -> dict[str, Any]:
    """The annotations of a door's arguments, or of a class's fields."""
    if isinstance(function, type):
        return annotations(function)
    function = scores if function is rl.evaluate else function
    given = inspect.get_annotations(inspect.unwrap(function), eval_str=True)
    return {n: given[n] for n in inspect.signature(function).parameters if n in given}


def refuses(function: Callable, good: dict, types: dict) -> None:
    """Every argument of `function`, with all that it must not be."""
    for name, kind in types.items():
        rows = [(f"{name} must ", value) for value in bad(kind)]
        rows += [(f"{name} must … got ", n) for n in OUT_OF_RANGE.get(name, ())]
        if isinstance(good.get(name), Tensor):
            rows = bad_tensors(name, good[name])
        for words, value in rows:
            refused(words, function, **{**good, name: value})


@pytest.mark.parametrize("name", DOORS)
def test_an_argument_of_a_front_door(name):
    function, good = DOORS[name]
    refuses(function, good, kinds(function))


def configured(algorithm="grpo", **settings):
    """Settings as a run of a method takes them."""
    return check_fit(TrainConfig(**settings), ALGORITHMS[algorithm])


@METHODS
def test_a_hyperparameter(algorithm):
    """By the loss, by the settings of a run, and by `--set` as text."""
    name, types = algorithm.name, algorithm.annotations
    loss = partial(algorithm.policy_loss, **BATCH)
    for call in (loss, lambda **given: configured(name, hyperparameters=given)):
        refuses(call, {}, types)
        if name not in ("gmpo", "rspo"):  # there the bound is one of log r
            for lower in {"epsilon", "epsilon_low"} & types.keys():
                refused("must be a number > 0 and ≤ 1, got 1.5", call, **{lower: 1.5})
    for key, kind in (types | FIELDS if name == "grpo" else types).items():
        for text in (*bad(kind, TEXT), *map(str, OUT_OF_RANGE.get(key, ()))):
            if str not in parts(kind):
                words = f"{key} must … got {text!r}"
                refused(words, parse_settings, algorithm, [f"{key}={text}"])


def test_every_number_of_a_door_has_its_range_here():
    every = [kinds(function) for function, _ in DOORS.values()]
    every += [algorithm.annotations for algorithm in ALGORITHMS.values()]
    every = [(n, parts(kind)) for types in every for n, kind in types.items()]
    assert {n for n, types in every if types & {int, float}} == OUT_OF_RANGE.keys()


def test_every_front_door_of_the_core_is_here():
    """Each function that `guarded` has made; settings are theirs by their class."""
    here = {inspect.unwrap(getattr(f, "__func__", f)) for f, _ in DOORS.values()}
    for name in (m.name for m in pkgutil.walk_packages(rl.__path__, "refimpl.")):
        if name.split(".")[1] in ("real", "interop", "lab", "__main__"):
            continue
        every = list(vars(importlib.import_module(name)).values())
        classes = [vars(c).items() for c in every if isinstance(c, type)]
        every += [x for c in classes for name, x in c if name != "__init__"]
        for function in (getattr(x, "__func__", x) for x in every):
            code = getattr(function, "__code__", None)
            if code and code.co_qualname == "guarded.<locals>.call":
                assert inspect.unwrap(function) in here, f"{name}: {function}"


# What no type says

TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("7 prompts … 4 equal mini-batches", {"prompts_per_rollout": 7}),
    ("max_length 3 … max_new_tokens 9", {"max_length": 3, "max_new_tokens": 9}),
    ("detach_shift … before_clip", {"detach_shift": False, "placement": "after_clip"}),
    ("rollout_dtype must be 'bfloat16' or", {"rollout_dtype": "float64"}),
    ("'bfloat16' … 'float64'", {"rollout_dtype": "bfloat16", "dtype": "float64"}),
    ("take replay='R3'", {"trust_sampler": True, "replay": "R2"}),
    ("normaliser must … did you mean 'token_mean'", {"normaliser": "token_meam"}),
    ("grpo … group_size must be ≥ 2, got 1", {"group_size": 1}),
    ("dapo … group_size must be ≥ 2", {"algorithm": "dapo", "group_size": 1}),
    ("allow_on_policy=True", {"minibatches": 1}),
    ("router_shift … correct=True", {"algorithm": "reinforce", "router_shift": True}),
    ("did you mean 'epsilon'", {"hyperparameters": {"epsilom": 0.2}}),
    ("no setting 1", {"hyperparameters": {1: 0.2}}),
    ("did you mean 'rollouts'", {"rolouts": 3}),
    *((f"TrainConfig has no setting {name!r} … it has", {name: 1}) for name in LEFT),
]


def test_settings_that_do_not_go_together():
    for words, given in TOGETHER:
        refused(words, configured, **given)
    ppo = {"algorithm": "ppo", "group_size": 1, "dynamic_sampling": True}
    refused("dynamic_sampling … group_size must be ≥ 2", configured, **ppo)
    refused("seed must be a whole number ≥ 0", replace, TrainConfig(), seed="one")
    refused("min_terms 4 … max_terms 3", Arithmetic, min_terms=4, max_terms=3)
    refused("min_items 5 … max_items 4", Sorting, min_items=5, max_items=4)
    mixes = [(0.5, 0.5), (0.9, 0.9, 0.9), (0.0, 0.0, 0.0), (NAN, 0.5, 0.5)]
    for mix in (*mixes, (-0.5, 1.0, 0.5), ("0.2", 0.4, 0.4)):
        refused("habit_mix must … got ", Arithmetic, habit_mix=mix)
        refused("habit_mix must … got ", Sorting, habit_mix=mix)
        refused("skill_mix must … got ", WarmStart, skill_mix=mix)
        refused("mix must … got ", Arithmetic().demonstrations, 4, 0, mix=mix)


def at(door: str, words: str, **changed) -> None:
    """A door with some of its good arguments changed."""
    function, good = DOORS[door]
    refused(words, function, **good | changed)


def tokenizer(**changed):
    """Another end, or tokens that the model lacks."""
    other = make_tokenizer()
    other.add_tokens(changed.pop("more", []))
    for name, value in changed.items():
        setattr(other, name, value)
    return other


def other_model(config, **sizes):
    """Mamba, whose state is no key-value cache; GPT-2 with few positions."""
    sizes |= {"vocab_size": len(TOKENIZER), "eos_token_id": TOKENIZER.eos_token_id}
    return AutoModelForCausalLM.from_config(config(**sizes))


PARTS = ("sample", "held_out", "reward", "habit", "habits")


def task(**changed):
    """The arithmetic world with parts of it replaced; None: left out."""
    whole = {name: getattr(Arithmetic(), name) for name in PARTS} | changed
    return SimpleNamespace(**{k: v for k, v in whole.items() if v is not None})


ROW = {"prompt": "1+2=", "answer": 3, "terms": 2}
BAD_ROWS = [None, [], 3, "1+2=", ["1+2="], iter([ROW]), [{"answer": 3}]]
BAD_ROWS += [[{"prompt": 12}], [{"prompt": None}], [ROW, {"prompt": "3+4="}]]


def test_training_is_refused_before_work_starts(monkeypatch):
    def too_late(*_):
        raise AssertionError("work started")

    monkeypatch.setattr(TRAIN, "collect", too_late)
    run = partial(at, "train")
    run("'gropo' … did you mean 'grpo'", algorithm="gropo")
    run("config must be of type TrainConfig … seed", config={"seed": 1})
    run("causal language model … Linear", model=nn.Linear(2, 2))
    run("model and tokenizer together", tokenizer=None)
    run("model and tokenizer together", model=None)
    run("no eos_token", tokenizer=tokenizer(eos_token=None))
    run("19 tokens … only 18", tokenizer=tokenizer(more=["<extra>"]))
    mamba = other_model(MambaConfig, hidden_size=16, state_size=4, num_hidden_layers=1)
    run("Mamba … cannot be sampled from", model=mamba)
    gpt2 = other_model(GPT2Config, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    run("16 positions … max_new_tokens", model=gpt2)
    frozen = random_model().requires_grad_(False)
    run("gradient … requires_grad_(True)", model=frozen)
    run("router_shift … mixture of experts … tiny-moe", algorithm="rspo")
    for name, value in (("replay", "R2"), ("router_noise", 0.1), ("router_rate", 2.0)):
        config = replace(SMALL, **{name: value})
        run(f"{name} … mixture of experts", config=config)
    run("cannot use device 'gpu'", config=replace(SMALL, device="gpu"))
    run("hooks must be of type Collection", hooks=print)
    for value in ("arithmetic", 3, []):
        run(f"task must be an object with … {value!r}", task=value)
    run("task must be an object with … got <class", task=Arithmetic)
    for name in PARTS:
        run(f"task must be an object … lacks {name}", task=task(**{name: None}))
    for name in ("sample", "held_out"):
        for rows in BAD_ROWS:
            changed = task(**{name: lambda *_, rows=rows: rows})
            run(f"task.{name} must return a list … 'prompt'", task=changed)
    run("as many rows … returned 1", task=task(sample=lambda n, seed: [ROW]))
    nothing = task(sample=lambda n, seed: [{"prompt": ""}] * n)
    run("no token of the prompt ''", task=nothing)
    run("resume=True needs a checkpoint_dir", resume=True)
    run("overwrite=True needs a checkpoint_dir", overwrite=True)
    run("resume … overwrite … choose one", resume=True, overwrite=True)
    run("cannot write checkpoints to ''", checkpoint_dir="")


def test_what_only_the_first_rollout_can_show():
    paid = [None, 1.0, [1.0], ["good"] * 16, [None] * 16, [NAN] * 16, [INF] * 16]
    paid += ["x" * 16, dict.fromkeys("abcdefghijklmnop", 1.0), [[1.0, 2.0]] * 16]

    def raising(**_):
        raise RuntimeError("the judge\nis away")

    for pay in paid:
        reward = partial(lambda pay, **_: pay, pay)
        at("train", "the reward function … number", reward=reward)
    parts = Sum({"half": lambda **_: 1.0})
    at("train", "(component 'half') must return 16 numbers", reward=parts)
    at("train", "raising raised RuntimeError: the judge is away", reward=raising)
    at("train", "take **columns", reward=lambda prompts, completions: 1)


def test_sampling_and_measuring():
    for prompts in ([], [""], [3], [None], ["1+2=", ["3"]], ["1" * 200]):
        at("sample", "prompt", prompts=prompts)
    larger = tokenizer(more=["<extra>"])
    at("sample", "token 18 … only 18", prompts=["<extra>"], tokenizer=larger)
    for door in ("sample", "scores", "evaluate"):
        at(door, "causal language model … Linear", model=nn.Linear(2, 2))
    for door in ("scores", "evaluate", "prepare"):
        at(door, "task must be an object with … 'arithmetic'", task="arithmetic")
    for rows in BAD_ROWS:
        changed = task(held_out=lambda *_, rows=rows: rows)
        at("evaluate", "task.held_out must return … 'prompt'", task=changed)
    at("scores", "nan … a finite number", task=task(reward=lambda **_: [NAN] * 4))
    at("values", "critic must … make_critic", critic=MODEL)
    at("pass_at", "k must be at most 3, … got 4", k=4)


def test_losses_curves_and_gates():
    at("overlong_punishment", "buffer must … max_length = 12 … got 13", buffer=13)
    at("curve", "advantage must not be 0", advantage=0)
    at("curve", "no setting 'epsilon'", algorithm="sapo", epsilon=0.2)
    at("curve", "epsilon must … got -0.2", algorithm="ppo", epsilon=-0.2)
    at("policy_loss", "no setting … it has: epsilon_low", aggregation="token_mean")
    at("policy_loss", "advantages is nan at [0]", advantages=tensor([NAN, 1.0]))
    at("from_gate", "gate must take (r, advantages)", gate=lambda r: r)
    refused("policy_loss … old_logp", ALGORITHMS["grpo"].policy_loss, BATCH["logp"])
    refused("did you mean 'tau_pos'", ALGORITHMS["sapo"].policy_loss, **BATCH, tau_po=1)
    for gate, words in (
        (lambda r, a: 1.0, "gate must return a tensor … float"),
        (lambda r, a: None, "gate must return a tensor … NoneType"),
        (lambda r, a: r[0], "gate must return a tensor … (3,)"),
        (lambda r, a: r * NAN, "objective of my gate is not finite"),
        (lambda r, a: r * INF, "objective of my gate is not finite"),
    ):
        refused(words, rl.from_gate(gate).policy_loss, **BATCH)
    for name in ("gropo", "GRPO"):
        refused("did you mean 'grpo'", rl.get, name)
    for name in ("", None, 3, [], ()):
        refused(f"unknown algorithm {name!r}", rl.get, name)


def test_formulas_that_have_a_sentence_of_their_own():
    lonely = rl.Scored(tensor([1.0, 0.0, 1.0, 0.5]), tensor([0, 0, 0, 7]))
    for name in ("group_relative", "group_centred", "leave_one_out"):
        words = "at least 2 responses … group 7 has 1 … group_size ≥ 2"
        refused(words, getattr(rl.advantages, name), lonely)
    mask, given = BATCH["mask"], BATCH | {"weight": None}
    normaliser = rl.normalisers.group_token_mean
    refused("max_length … (3 tokens), got 2", rl.normalisers.constant, mask, 2)
    refused("group_token_mean needs group", rl.normalisers.apply, normaliser, mask)
    words = "constant needs max_length … weight=normalisers.constant(mask, max_length)"
    refused(words, ALGORITHMS["dr_grpo"].policy_loss, **given)
    refused("has no router … tiny-moe", rl.moe.routed(MODEL).__enter__)


def test_sums_of_rewards_names_and_devices():
    refused("components must be a dictionary … got [", Sum, [len])
    refused("at least one reward function … got {}", Sum, {})
    refused("name must be text … got 3", Sum, {3: len})
    refused("name must be text of one line", Sum, {"a\nb": len})
    refused("'a' must be a function, got 'b'", Sum, {"a": "b"})
    refused("weights must be 2 … a, b", Sum, {"a": len, "b": len}, [1])
    refused("weights must be 1 finite … got [inf]", Sum, {"a": len}, [INF])
    refused("weights must be 1 finite … got ['1']", Sum, {"a": len}, ["1"])
    at("build", "unknown preset 'tinny', did you mean 'tiny'", preset="tinny")
    for value in ("gpu", "", None, 3, "cuda:-1", "cpu:x", ["cpu"], NAN):
        refused(f"cannot use device {value!r}", pick_device, value)
    refused("cannot use device 'gpu'", rl.warm_start, device="gpu")
    for value in (None, 3.5, NAN, [3]):
        words = f"answer must be a whole number or text, got {value!r}"
        refused(words, verify, "#3", value)
        at("correctness", "answer must be a whole number", answer=[value])
    refused("unknown arm 'GROP', did you mean 'GRPO'", grid.Cell, "GROP")
    refused("RSPO needs a mixture of experts: world='moe'", grid.Cell, "RSPO")
    refused("did you mean 'sorting'", grid.Cell, "GRPO", world="sort")
    refused("K must be one of 1, 4, 16", grid.Cell, "GRPO", updates=3)


def test_a_column_that_is_not_there_names_those_that_are():
    """By `[]`, where Python's own KeyError is what a reader expects."""
    with pytest.raises(KeyError, match=r"no column 'rewards'; there are: reward"):
        HISTORY["rewards"]
    unmeasured = History("grpo", [{"accuracy": None}])
    refused("no accuracy was measured", lambda: unmeasured.accuracy)


# Files


def small_train(folder=None, algorithm="grpo", rollouts=1, **given):
    config = replace(SMALL, rollouts=rollouts)
    given = {"config": config, "reward": fixed_noise, "progress": False} | given
    return rl.train(algorithm, **PAIR, checkpoint_dir=folder, **given)


def half(path: Path) -> None:
    """A checkpoint cut off in the middle."""
    run = {key: None for key in checkpoint.KEYS} | {"rows": [0.0] * 1000}
    torch.save({"version": checkpoint.VERSION, **run}, path)
    path.write_bytes(path.read_bytes()[:-500])


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "no file": lambda path: None,
    "an empty file": lambda path: path.write_bytes(b""),
    "prose": lambda path: path.write_text("Dear reader,\nthis is something else.\n"),
    "{}": lambda path: path.write_text("{}"),
    "[]": lambda path: path.write_text("[]"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "a folder": Path.mkdir,
    "other tensors": lambda path: torch.save({"weights": torch.zeros(2)}, path),
    "no run": lambda path: torch.save({"version": checkpoint.VERSION}, path),
    "half a checkpoint": half,
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_is_not_what_it_should_be(what, tmp_path):
    for name in (checkpoint.NAME, "h.csv", "config.json"):
        DAMAGE[what](tmp_path / name)
    refused(checkpoint.NAME, small_train, tmp_path, resume=True)
    refused("h.csv", History.from_csv, tmp_path / "h.csv")
    refused("no causal language model", load, tmp_path / "h.csv")
    refused("no causal language model", load, tmp_path)  # whose config.json it is


@pytest.mark.parametrize(
    "name", "model.safetensors config.json tokenizer.json tokenizer_config.json".split()
)
def test_a_policy_with_a_damaged_file(name, tmp_path):
    MODEL.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    assert load(tmp_path)
    for what in ("an empty file", "prose", "binary", "no file", "a folder"):
        (tmp_path / name).unlink(missing_ok=True)
        DAMAGE[what](tmp_path / name)
        if (name, what) != ("tokenizer.json", "no file"):  # the other will do
            refused("tokenizer", load, tmp_path)


def test_a_folder_that_a_run_cannot_have(tmp_path, monkeypatch):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("in the way")
    folder.mkdir()
    refused("cannot write checkpoints to … choose a folder", small_train, file)
    refused("cannot write checkpoints to … below", small_train, file / "below")
    writers = {"the history": HISTORY.to_csv, "the samples": HISTORY.samples_to_jsonl}
    for what, write in writers.items():
        refused(f"cannot write {what} to … below", write, file / "below")
        refused(f"cannot write {what} to … is a folder", write, folder)
    with FileLock(folder / ".lock"):
        refused("another process trains in … of its own", small_train, folder)
    small_train(folder)
    refused("holds a checkpoint already … resume … overwrite", small_train, folder)
    go_on = partial(small_train, folder, rollouts=2, resume=True)
    refused("a run of 'grpo', not of 'ppo'", go_on, algorithm="ppo")
    refused("seed was 0, now 7", go_on, config=replace(SMALL, seed=7))
    refused("task … max_terms=3", go_on, task=Arithmetic(max_terms=3))
    refused("reward … fixed_noise … correctness", go_on, reward=Arithmetic.reward)
    for salt in ("pepper", "-1", "1.5"):
        monkeypatch.setenv("REFIMPL_SALT", salt)
        refused(f"REFIMPL_SALT must be a whole number ≥ 0, got {salt!r}", small_train)


QUICK = WarmStart(skill_steps=1, habit_steps=1, batch_size=2)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "start.json"])
def test_a_damaged_cache_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path))
    rl.warm_start(QUICK)
    path = cached(QUICK) / name
    damages = dict(DAMAGE)
    if name == "start.json":
        del damages["no file"]  # then there is no cache
    for damage in damages.values():
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        damage(path)
        refused(f"the policy in {cached(QUICK)} is damaged", rl.warm_start, QUICK)
    monkeypatch.setenv("REFIMPL_CACHE", str(path / "below a file"))
    refused("cannot write the warm start", rl.warm_start, QUICK)


# NumPy and torch scalars are numbers


def scalars(value) -> list:
    """One number as NumPy and torch hold it."""
    kind = {bool: np.bool_, int: np.int64, float: np.float64}[type(value)]
    return [kind(value), np.array(value), torch.as_tensor(np.array(value))]


def test_a_scalar_becomes_a_plain_number_that_can_be_stored():
    makers = [
        (lambda cls=cls, **given: asdict(cls(**given)), asdict(cls()))
        for cls in (TrainConfig, WarmStart, Arithmetic, Sorting)
    ]
    for algorithm in ALGORITHMS.values():
        filled = {n: 2.0 if v is None else v for n, v in algorithm.defaults.items()}
        makers.append((lambda a=algorithm, **g: a.check_hyperparameters(g), filled))
    for make, known in makers:
        for name, value in known.items():
            for scalar in scalars(value) if isinstance(value, int | float) else ():
                plain = make(**{name: scalar})[name]
                assert type(plain) is type(value) and plain == value
                json.dumps(plain)


def test_a_scalar_is_an_argument_and_any_whole_number_a_seed():
    given = {"group_size": 2, "max_new_tokens": 3, "temperature": 0.5, "seed": 3}
    sample = partial(rl.sample, MODEL, TOKENIZER, PROMPTS)
    for same in zip(*map(scalars, given.values())):
        again = sample(**dict(zip(given, same)))
        assert torch.equal(sample(**given).logp, again.logp)
    for seed in (2**31, 2**63, 2**70):
        sample(max_new_tokens=2, seed=seed)
        Arithmetic().sample(2, seed)
        build("tiny", TOKENIZER, seed)
