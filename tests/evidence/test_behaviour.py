"""What names a method's formula: numbers, the same on every processor."""

import contextlib
import math

import pytest
import torch

from experiments.arms import ARMS
from experiments.behaviour import INPUTS, Inputs, answers, behaviour, rounded
from refimpl import from_gate
from refimpl.algorithms import ALGORITHMS
from refimpl.config import TrainConfig
from refimpl.corrections import BAND, RULES
from refimpl.validation import UserError

BUILT = {name: (a, {}) for name, a in ALGORITHMS.items()}
BUILT |= {f"arm {name}": arm.build() for name, arm in ARMS.items()}


@pytest.mark.parametrize("name", BUILT)
def test_no_processor_changes_a_name(name):
    """No number is within ten times a relative 1e-13 of where rounding turns over."""
    method, config = BUILT[name][0], TrainConfig(**BUILT[name][1])
    for x in torch.cat([x.flatten() for x in answers(method, config, INPUTS)]).tolist():
        unit = 1e-7 * max(1, 10 ** math.floor(math.log10(abs(x) or 1)))
        assert abs(abs(x) / unit % 1 - 0.5) * unit > 1e-12 * abs(x)
    dice = torch.Generator().manual_seed(0)
    noise = [1 - 1e-13 * torch.rand(8, 6, generator=dice).double() for _ in range(5)]
    noisy = Inputs(*(x * e for x, e in zip(INPUTS, noise)), *INPUTS[5:])
    assert behaviour(method, config, noisy) == behaviour(method, config)


MASKS = {(f"dppo_{x}", f"delta_{y}") for x in ("tv", "kl") for y in ("low", "high")}
MASKS |= {("ipo", "delta"), ("glm5", "epsilon_low"), ("glm5", "epsilon_high")}
MASKS |= {("sao", "epsilon_low"), ("sao", "epsilon_high"), ("flash_reinforce", "delta")}
"""Bounds that only say which tokens are dropped: a hundredth may drop none more."""


def allowed(method, **given) -> bool:
    """Whether a loss takes it: a default may be the edge of its range."""
    with contextlib.suppress(UserError):
        return bool(method.check_hyperparameters(given))
    return False


HUNDREDTHS = [
    (name, {"hyperparameters": {which: share * usual}})
    for name, method in ALGORITHMS.items()
    for which, usual in method.defaults.items()
    for share in ((0.3, 2.0) if (name, which) in MASKS else (0.99, 1.01))
    if isinstance(usual, float) and usual
    if allowed(method, **{which: share * usual})
]
BOUNDS = {name: 1.1 if rule.bound is BAND else 0.1 for name, rule in RULES.items()}
SWITCHES = [
    *((name, {"hyperparameters": {"dual_clip": 1.2}}) for name in ("grpo", "gspo")),
    ("cispo", {"hyperparameters": {"mask_epsilon_low": 0.2}}),
    ("grpo", {"beta": 0.1}),
    *(("grpo", {"corrections": {name: bound}}) for name, bound in BOUNDS.items()),
    ("grpo", {"normaliser": "token_mean"}),
    ("rspo", {"router_shift": False}),
    *(("ppo", {name: 0.9}) for name in ("lam", "gamma", "value_clip", "lam_critic")),
    *(("ppo", x) for x in ({"lam_alpha": 1.5}, {"whiten": False})),
    *(("grpo", {"advantage": name}) for name in ("gae", "distillation")),
]


@pytest.mark.parametrize(("name", "setting"), HUNDREDTHS + SWITCHES)
def test_what_enters_the_loss_is_seen(name, setting):
    usual = behaviour(ALGORITHMS[name], TrainConfig())
    changed = behaviour(ALGORITHMS[name], TrainConfig(**setting))
    assert changed != usual, "a bound that only drops tokens is named in MASKS"


def test_the_kl_is_a_part_of_its_own():
    """With a γ or a cap on the method's loss it is what it is without."""
    parts = []
    for other in ({}, {"router_shift": True}, {"corrections": {"token_truncate": 1.0}}):
        configs = (TrainConfig(beta=beta, **other) for beta in (0.3, 0.0))
        kl, none = (answers(ALGORITHMS["grpo"], c, INPUTS)[1] for c in configs)
        parts.append(kl - none)
    assert min(parts) > 1e-3 and max(parts) - min(parts) < 1e-12


def test_a_gate_is_known_by_its_numbers():
    """Not by its name, nor by how it is written."""
    one, two = (lambda r, a: 1 / r), (lambda x, _: torch.exp(-torch.log(x)))
    wrong = lambda r, a: 1 / r + 1e-4  # noqa: E731
    gates = [from_gate(g, name) for g, name in ((one, "a"), (two, "b"), (wrong, "a"))]
    first, second, third = (behaviour(gate, TrainConfig()) for gate in gates)
    assert first == second != third


def test_rounding():
    found = [rounded(x) for x in (0.123456749, -1e-9, 12345678.9, 1.00000004)]
    assert found == [0.1234567, 0.0, 12345679.0, 1.0]
    assert math.copysign(1, found[1]) == 1
