"""Settings: plain values of the right type and range, or one sentence that says so.

That each refuses whatever its annotation excludes is in `tests/test_bad_input.py`.
"""

import math
import pickle
from dataclasses import asdict, replace

import pytest

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
    "gamma must be a number ≥ 0 and ≤ 1, got 1.5": {"gamma": 1.5},
    "learning_rate must be a number > 0, got '1e-3'": {"learning_rate": "1e-3"},
    "temperature must be a finite number > 0, got inf": {"temperature": math.inf},
    "overlong_filtering must be True or False, got 1": {"overlong_filtering": 1},
    "kl_in must be 'loss' or 'reward', got 'x'": {"kl_in": "x"},
    "replay must be 'R2' or 'R3' or None, got 'R1'": {"replay": "R1"},
    "seed must be a whole number ≥ 0, got None": {"seed": None, "beta": -1},
    "trust_sampler spares the pass of π_old, and replay='R2' replays the experts of "
    "that pass: take replay='R3', or leave trust_sampler off": {
        "trust_sampler": True,
        "replay": "R2",
    },
    "rollout_dtype 'int8' cannot stand beside dtype 'float64': leave it off": {
        "dtype": "float64",
        "rollout_dtype": "int8",
    },
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_names_the_range_and_the_value_of_the_first_that_is_wrong(sentence):
    with pytest.raises(UserError) as caught:
        TrainConfig(**SENTENCES[sentence])
    assert str(caught.value) == sentence


# What a paper prescribes


def test_the_settings_of_a_paper_hold_unless_they_are_given():
    off = TrainConfig(dynamic_sampling=False, overlong_share=0.0, router_shift=False)
    for name, config, wanted in (
        ("dapo", TrainConfig(), (True, 0.2, None)),
        ("dapo", off, (False, 0.0, False)),
        ("grpo", TrainConfig(), (None, None, None)),
        ("rspo", TrainConfig(), (None, None, True)),
        ("rspo", off, (False, 0.0, False)),
    ):
        found, _ = check_fit(config, ALGORITHMS[name])
        settings = asdict(found)
        names = ("dynamic_sampling", "overlong_share", "router_shift")
        assert tuple(settings[name] for name in names) == wanted
    assert prepared("dapo").config.dynamic_sampling is True
    given = replace(off, hyperparameters={"epsilon": 0.1})
    _, hyperparameters = check_fit(given, ALGORITHMS["grpo"])
    assert hyperparameters == {"epsilon_low": 0.1, "epsilon_high": 0.1}


MISMATCH = [
    ({}, False),
    ({"rollout_dtype": "bfloat16"}, True),
    ({"rollout_dtype": "float32"}, False),
    ({"dtype": "bfloat16"}, True),  # which rounds otherwise with a cache
    ({"rollout_dtype": "int8"}, True),
    ({"router_noise": 0.1}, True),
    ({"top_k": 3}, True),
    ({"top_p": 0.9}, True),
    ({"top_p": 1.0}, False),
    ({"sampler_delay": 1}, True),
]


def test_when_a_sampler_cannot_stand_for_the_old_policy():
    assert [TrainConfig(**given).mismatch for given, _ in MISMATCH] == [
        expected for _, expected in MISMATCH
    ]


# Copies
def test_a_config_cannot_be_changed_and_can_be_copied():
    given = {"epsilon_low": 0.1}
    config = TrainConfig(seed=3, hyperparameters=given)
    with pytest.raises(AttributeError):
        config.seed = 4
    given["epsilon_low"] = 0.9
    assert config.hyperparameters == {"epsilon_low": 0.1}
    assert TrainConfig().hyperparameters is not TrainConfig().hyperparameters
    assert replace(config, seed=4).seed == 4
    assert type(TrainConfig(temperature=2).temperature) is float
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
NO_TEXTS = {"seed": "1.5", "learning_rate": "inf", "overlong_filtering": "none"}


def test_text_becomes_what_the_setting_holds_or_is_refused():
    for (name, text), wanted in TEXTS.items():
        value = parse(name, KINDS[name], text)
        assert value == wanted and type(value) is type(wanted)
        assert getattr(TrainConfig(**{name: value}), name) == value
    for name, text in NO_TEXTS.items():
        with pytest.raises(UserError, match=rf"^{name} must be .*, got '{text}'$"):
            parse(name, KINDS[name], text)
