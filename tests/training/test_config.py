"""Settings: plain values of the right type and range, or one sentence that says so."""

import json
import math
import pickle
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import torch

from refimpl import normalisers
from refimpl.algorithms import ALGORITHMS
from refimpl.config import TrainConfig
from refimpl.kl import ESTIMATORS
from refimpl.settings import annotations, parse, table
from refimpl.sft import WarmStart
from refimpl.tasks import Arithmetic
from tests.worlds import prepared

KINDS = annotations(TrainConfig)

# Wrong values


WRONG = {
    "seed": [-1, 0.5, "3", None, np.float64(1), True],
    "rollouts": [0, -1, 1.5, "3", True],
    "prompts_per_rollout": [0, 2.0],
    "group_size": [0, None],
    "max_new_tokens": [0, "48"],
    "temperature": [0, -1.0, math.nan, math.inf, "1.0", True, None],
    "minibatches": [0, 3],
    "epochs": [0, 0.5],
    "micro_batch_size": [0, -16],
    "share_prompts": ["yes", 1],
    "measure_drift": ["yes", 1, None],
    "trust_sampler": ["yes", 1, None],
    "sampler_delay": [-1, 0.5, None],
    "router_rate": [0.0, -1.0, "fast"],
    "learning_rate": [0, -1e-3, math.nan],
    "warmup_updates": [-1],
    "schedule": ["Linear", "", None],
    "gradient_checkpointing": ["yes", 1, None],
    "weight_decay": [-0.1, math.nan],
    "max_grad_norm": [0, -1.0],
    "entropy_bonus": [-0.1],
    "beta": [-0.1, math.nan],
    "kl_in": ["Loss", None],
    "kl_estimator": ["k4", "", "K3"],
    "normaliser": ["token_meam", "", normalisers.token_mean, 3],
    "max_length": [0, -1, 47, "48", 48.0, math.inf],
    "hyperparameters": [None, [("epsilon", 0.2)], "epsilon=0.2"],
    "device": [None, 0, torch.device("cpu")],
    "gamma": [-0.1, 1.1, math.nan],
    "lam": [-0.1, 1.1],
    "critic_learning_rate": [0, -1.0],
    "value_clip": [0, -0.2],
    "eval_every": [0],
    "eval_problems": [0],
    "eval_samples": [0, 1.5, None],
    "samples_every": [-1, 0.5, True, None],
    "top_p": [0, 0.0, 1.1, math.nan],
    "top_k": [0, 1.5, True],
    "min_p": [-0.1, 1.1, math.nan],
    "dtype": ["float16", torch.float32],
    "checkpoint_every": [0],
    "max_sampling_rounds": [0, 1.5],
    "overlong_share": [-0.1, 1.5, math.nan],
    "rollout_dtype": ["float16", "bf16", "int4"],
    "optimizer": ["adam", "SGD", None],
    "router_noise": [-0.1, math.nan],
    "max_rollout_weight": [0, -1.0, math.nan],
    "replay": ["R1", "r3", True],
    "router_shift_floor": [0, 1.1, math.nan],
    "placement": ["before", None],
    "router_aux_loss": [-1e-3],
}


WRONG |= {
    name: ["false", "no", 0, 1]
    for name in (
        "allow_on_policy dynamic_sampling overlong_filtering router_shift detach_shift"
    ).split()
}


def test_every_setting_has_wrong_values_here():
    assert WRONG.keys() == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]]
)
def test_a_wrong_setting_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"{name}\b") as caught:
        TrainConfig(**{name: value})
    assert "\n" not in str(caught.value)  # one sentence, not pydantic's report


def test_the_sentence_names_the_range_and_the_value():
    for name, value, said in (
        ("epochs", 0, "epochs must be a whole number ≥ 1, got 0"),
        ("gamma", 1.5, "gamma must be a number in [0, 1], got 1.5"),
        ("learning_rate", "1e-3", "learning_rate must be a number > 0, got '1e-3'"),
        ("temperature", math.inf, "temperature must be a finite number > 0, got inf"),
        ("overlong_filtering", 1, "overlong_filtering must be True or False, got 1"),
        ("kl_in", "x", "kl_in must be one of 'loss', 'reward', got 'x'"),
        ("replay", "R1", "replay must be one of 'R2', 'R3' or None, got 'R1'"),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            TrainConfig(**{name: value})
        assert str(caught.value) == said


def test_every_wrong_setting_is_named_at_once():
    with pytest.raises(ValueError, match=r"epochs must be .* 0; gamma must be .* 2"):
        TrainConfig(epochs=0, gamma=2)


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match=r"'epoch', did you mean 'epochs'\?"):
        TrainConfig(epoch=1)


@pytest.mark.parametrize(
    ("dtype", "rollout_dtype"),
    [("float32", "float64"), ("float64", "bfloat16"), ("float64", "int8")],
)
def test_a_rollout_dtype_that_could_not_act_is_refused(dtype, rollout_dtype):
    with pytest.raises(ValueError, match="only bfloat16, float32 and int8"):
        TrainConfig(dtype=dtype, rollout_dtype=rollout_dtype)


# What a paper prescribes


def test_the_settings_of_a_paper_hold_unless_they_are_given():
    dapo, grpo = ALGORITHMS["dapo"], ALGORITHMS["grpo"]
    default = TrainConfig().completed(dapo)
    assert (default.dynamic_sampling, default.overlong_share) == (True, 0.2)
    own = TrainConfig(dynamic_sampling=False, overlong_share=0.0).completed(dapo)
    assert (own.dynamic_sampling, own.overlong_share) == (False, 0.0)
    other = TrainConfig().completed(grpo)
    assert (other.dynamic_sampling, other.overlong_share) == (False, 0.0)
    assert prepared("dapo").config.dynamic_sampling is True


@pytest.mark.parametrize("placement", ["before_clip", "after_clip"])
def test_a_shift_with_a_gradient_stands_before_the_clip(placement):
    if placement == "before_clip":
        assert not TrainConfig(detach_shift=False, placement=placement).detach_shift
    else:
        with pytest.raises(ValueError, match="detach_shift=False goes with"):
            TrainConfig(detach_shift=False, placement=placement)


# Numbers from elsewhere

SCALARS = {
    "numpy": (np.int64(3), np.float32(0.5), np.bool_(True)),
    "numpy, no dimension": (np.array(3), np.array(0.5), np.array(True)),
    "torch": (torch.tensor(3), torch.tensor(0.5), torch.tensor(True)),
}


@pytest.mark.parametrize("kind", SCALARS)
def test_numbers_of_numpy_and_torch_become_plain(kind):
    """A setting has to go into a checkpoint and to come back the same."""
    whole, number, flag = SCALARS[kind]
    config = TrainConfig(
        seed=whole,
        beta=number,
        overlong_filtering=flag,
        hyperparameters={"epsilon_low": number},
    )
    plain = TrainConfig(
        seed=3,
        beta=0.5,
        overlong_filtering=True,
        hyperparameters={"epsilon_low": 0.5},
    )
    assert config == plain
    for one, other in zip(asdict(config).values(), asdict(plain).values(), strict=True):
        assert type(one) is type(other)
    assert type(config.hyperparameters["epsilon_low"]) is float
    assert json.dumps(asdict(config)) == json.dumps(asdict(plain))


def test_a_whole_number_will_do_for_a_number():
    assert TrainConfig(temperature=2).temperature == 2.0
    assert type(TrainConfig(temperature=2).temperature) is float


def test_a_config_cannot_be_changed_and_can_be_copied():
    config = TrainConfig(seed=3)
    with pytest.raises(AttributeError):
        config.seed = 4
    assert replace(config, seed=4) == TrainConfig(seed=4)
    with pytest.raises(ValueError, match="seed must be"):
        replace(config, seed=-1)
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_config_keeps_hyperparameters_of_its_own():
    given = {"epsilon_low": 0.1}
    config = TrainConfig(hyperparameters=given)
    given["epsilon_low"] = 0.9
    assert config.hyperparameters == {"epsilon_low": 0.1}
    assert TrainConfig().hyperparameters is not TrainConfig().hyperparameters


# From text

TEXTS = {
    ("dynamic_sampling", "false"): False,
    ("dynamic_sampling", "True"): True,
    ("dynamic_sampling", "none"): None,
    ("overlong_filtering", "FALSE"): False,
    ("overlong_filtering", "true"): True,
    ("detach_shift", "no"): False,
    ("seed", "7"): 7,
    ("learning_rate", "2e-4"): 2e-4,
    ("temperature", "2"): 2.0,
    ("replay", "R3"): "R3",
    ("replay", "None"): None,
    ("kl_estimator", "k3+"): "k3+",
    ("normaliser", "token_mean"): "token_mean",
    ("max_length", "100"): 100,
    ("device", "cuda:1"): "cuda:1",
}


@pytest.mark.parametrize("case", TEXTS, ids=" ".join)
def test_text_becomes_what_the_setting_holds(case):
    name, text = case
    value = parse(name, KINDS[name], text)
    assert value == TEXTS[case] and type(value) is type(TEXTS[case])
    assert getattr(TrainConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dynamic_sampling", "maybe"),
        ("overlong_filtering", ""),
        ("overlong_filtering", "none"),
        ("seed", "1.5"),
        ("seed", "-1"),
        ("learning_rate", "nan"),
        ("learning_rate", "inf"),
        ("epochs", "1e3"),
        ("kl_in", "Loss"),
    ],
)
def test_text_that_says_nothing_is_refused_by_name(name, text):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got '{text}'$"):
        parse(name, KINDS[name], text)


def test_every_setting_is_in_the_table():
    lines = table(TrainConfig).splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert all(" = " in line for line in lines)
    assert "  gamma = 1.0, a number in [0, 1]" in lines


# Names that must agree


def test_the_names_are_those_of_the_functions():
    for name in normalisers.NORMALISERS:
        assert TrainConfig(normaliser=name).normaliser == name
    for name in ESTIMATORS:
        assert TrainConfig(kl_estimator=name).kl_estimator == name


def test_the_normaliser_is_the_runs_or_else_the_papers():
    mask = (torch.arange(6) < torch.tensor([2, 4, 1, 6])[:, None]).double()
    group = torch.tensor([0, 0, 1, 1])
    dr_grpo, grpo = ALGORITHMS["dr_grpo"], ALGORITHMS["grpo"]
    short = TrainConfig(max_new_tokens=6)
    found = short.weight(dr_grpo, mask, group)
    assert torch.equal(found, normalisers.constant(mask, 6))
    found = replace(short, max_length=100).weight(dr_grpo, mask, group)
    assert torch.equal(found, normalisers.constant(mask, 100))
    found = short.weight(grpo, mask, group)
    assert torch.equal(found, normalisers.seq_mean_token_mean(mask))
    found = replace(short, normaliser="group_token_mean").weight(grpo, mask, group)
    assert torch.equal(found, normalisers.group_token_mean(mask, group))


# The warm start's and the world's

WARM = {
    "preset": ["tinny", None],
    "world": ["arithmetic", None],
    "seed": [-1, 1.5],
    "skill_steps": [0, 2.5],
    "skill_mix": [(0.9, 0.1), (0.9, 0.2, -0.1), (1.5, 0.0, 0.0), "mix", (0, 0, 0)],
    "skill_learning_rate": [0, math.inf],
    "habit_steps": [0, "100"],
    "habit_learning_rate": [-1e-3],
    "batch_size": [0, 64.0],
}


def test_every_setting_of_the_warm_start_has_wrong_values_here():
    assert WARM.keys() == {field.name for field in fields(WarmStart)}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WARM for value in WARM[name]]
)
def test_a_wrong_setting_of_the_warm_start_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"{name}\b"):
        WarmStart(**{name: value})


def test_a_wrong_world_is_refused_by_name():
    with pytest.raises(ValueError, match="min_terms 4 is above max_terms 3"):
        Arithmetic(min_terms=4, max_terms=3)
    with pytest.raises(ValueError, match=r"habit_mix must be 3 .* add up to 1, got"):
        Arithmetic(habit_mix=(0.5, 0.5, 0.5))
