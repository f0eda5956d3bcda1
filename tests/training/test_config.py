"""Settings: plain values of the right type and range, or one sentence that says so.

That each refuses whatever its annotation excludes is in `tests/test_bad_input.py`.
"""

import json
import math
import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from refimpl import ALGORITHMS, TrainConfig, UserError
from refimpl.checks import annotations, parse
from refimpl.kl import ESTIMATORS
from refimpl.normalisers import NORMALISERS
from refimpl.prepare import check_fit
from tests.worlds import prepared

KINDS = annotations(TrainConfig)


def test_every_setting_is_in_one_group():
    groups = TrainConfig.__mro__[1:-1]
    names = [name for group in groups for name in vars(group)["__annotations__"]]
    assert sorted(names) == sorted(asdict(TrainConfig())) == sorted(KINDS)
    assert all(group.__doc__ for group in groups)


SENTENCES = {
    "epochs must be a whole number ≥ 1, got 0": {"epochs": 0},
    "gamma must be a number in [0, 1], got 1.5": {"gamma": 1.5},
    "learning_rate must be a number > 0, got '1e-3'": {"learning_rate": "1e-3"},
    "temperature must be a finite number > 0, got inf": {"temperature": math.inf},
    "overlong_filtering must be True or False, got 1": {"overlong_filtering": 1},
    "kl_in must be one of 'loss', 'reward', got 'x'": {"kl_in": "x"},
    "replay must be one of 'R2', 'R3' or None, got 'R1'": {"replay": "R1"},
    "seed must be a whole number ≥ 0, got None; beta must be a number ≥ 0, got -1": {
        "seed": None,
        "beta": -1,
    },
    "rollout_dtype 'float64' with dtype 'float32': only bfloat16, float32 and int8 "
    "weights can stand beside each other": {"rollout_dtype": "float64"},
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_names_the_range_and_the_value_of_all_that_is_wrong(sentence):
    with pytest.raises(UserError) as caught:
        TrainConfig(**SENTENCES[sentence])
    assert str(caught.value) == sentence


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"'epoch', did you mean 'epochs'\?"):
        TrainConfig(epoch=1)


# What a paper prescribes


def test_the_settings_of_a_paper_hold_unless_they_are_given():
    dapo, grpo = ALGORITHMS["dapo"], ALGORITHMS["grpo"]
    own = TrainConfig(dynamic_sampling=False, overlong_share=0.0)
    for method, config, wanted in (
        (dapo, TrainConfig(), (True, 0.2, False)),
        (dapo, own, (False, 0.0, False)),
        (grpo, TrainConfig(), (False, 0.0, False)),
        (ALGORITHMS["rspo"], TrainConfig(), (False, 0.0, True)),
        (ALGORITHMS["rspo"], TrainConfig(router_shift=False), (False, 0.0, False)),
    ):
        found, _ = check_fit(config, method)
        assert (
            found.dynamic_sampling,
            found.overlong_share,
            found.router_shift,
        ) == wanted
    assert prepared("dapo").config.dynamic_sampling is True
    given = replace(own, hyperparameters={"epsilon": 0.1})
    assert check_fit(given, grpo)[1] == {"epsilon_low": 0.1, "epsilon_high": 0.1}


MISMATCH = {
    "none": ({}, False),
    "another precision": ({"rollout_dtype": "bfloat16"}, True),
    "the same one": ({"rollout_dtype": "float32"}, False),
    "bfloat16, which rounds otherwise with a cache": ({"dtype": "bfloat16"}, True),
    "rounded": ({"rollout_dtype": "int8"}, True),
    "noisy routers": ({"router_noise": 0.1}, True),
    "fewer tokens": ({"top_k": 3}, True),
    "a nucleus": ({"top_p": 0.9}, True),
    "all tokens": ({"top_p": 1.0}, False),
    "late": ({"sampler_delay": 1}, True),
}


@pytest.mark.parametrize("case", MISMATCH)
def test_when_a_sampler_cannot_stand_for_the_old_policy(case):
    settings, expected = MISMATCH[case]
    assert TrainConfig(**settings).mismatch is expected


# Numbers from elsewhere

SCALARS = {
    "numpy": (np.int64(3), np.float32(0.5), np.bool_(True)),
    "numpy, no dimension": (np.array(3), np.array(0.5), np.array(True)),
    "torch": (torch.tensor(3), torch.tensor(0.5), torch.tensor(True)),
    "whole numbers": (3, 0.5, True),
}


@pytest.mark.parametrize("kind", SCALARS)
def test_numbers_of_numpy_and_torch_become_plain(kind):
    """A setting has to go into a checkpoint and to come back the same."""
    whole, number, flag = SCALARS[kind]
    config, plain = (
        TrainConfig(
            seed=n,
            beta=x,
            temperature=n,
            overlong_filtering=b,
            hyperparameters={"epsilon_low": x},
        )
        for n, x, b in ((whole, number, flag), (3, 0.5, True))
    )
    assert config == plain and type(config.temperature) is float
    assert json.dumps(asdict(config)) == json.dumps(asdict(plain))
    assert type(config.hyperparameters["epsilon_low"]) is float


def test_a_config_cannot_be_changed_and_can_be_copied():
    given = {"epsilon_low": 0.1}
    config = TrainConfig(seed=3, hyperparameters=given)
    with pytest.raises(AttributeError):
        config.seed = 4
    given["epsilon_low"] = 0.9
    assert config.hyperparameters == {"epsilon_low": 0.1}
    assert TrainConfig().hyperparameters is not TrainConfig().hyperparameters
    assert replace(config, seed=4).seed == 4
    with pytest.raises(UserError, match="seed must be"):
        replace(config, seed=-1)
    assert pickle.loads(pickle.dumps(config)) == config


# From text

TEXTS = {
    ("dynamic_sampling", "false"): False,
    ("dynamic_sampling", "True"): True,
    ("dynamic_sampling", "none"): None,
    ("overlong_filtering", "FALSE"): False,
    ("detach_shift", "no"): False,
    ("seed", "7"): 7,
    ("learning_rate", "2e-4"): 2e-4,
    ("temperature", "2"): 2.0,
    ("replay", "R3"): "R3",
    ("replay", "None"): None,
    ("max_length", "100"): 100,
    ("device", "cuda:1"): "cuda:1",
    **{("normaliser", name): name for name in NORMALISERS},
    **{("kl_estimator", name): name for name in ESTIMATORS},
}
NO_TEXTS = [
    ("dynamic_sampling", "maybe"),
    ("overlong_filtering", ""),
    ("overlong_filtering", "none"),
    ("seed", "1.5"),
    ("learning_rate", "inf"),
    ("epochs", "1e3"),
    ("kl_in", "Loss"),
]


def test_text_becomes_what_the_setting_holds():
    for (name, text), wanted in TEXTS.items():
        value = parse(name, KINDS[name], text)
        assert value == wanted and type(value) is type(wanted)
        assert getattr(TrainConfig(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "text"), NO_TEXTS)
def test_text_that_says_nothing_is_refused_by_name(name, text):
    with pytest.raises(UserError, match=rf"^{name} must be .*, got '{text}'$"):
        parse(name, KINDS[name], text)
