"""What an objective promises, what a loss makes of it, and what is refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS, Objective, Tokens, from_gate
from refimpl.settings import Share
from tests.losses.test_algorithms import mask_of, random_batch

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:.*geometric mean over a whole"),
]
every = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)

OTHER = {  # a value that is not the default, and acts on `stale_tokens`
    "correct": True,
    "epsilon": 0.05,
    "epsilon_low": 0.05,
    "epsilon_high": 0.06,
    "dual_clip": 1.1,
    "max_ratio": 1.1,
    "mask_epsilon_low": 0.1,
    "mask_epsilon_high": 0.1,
    "tau_pos": 5.0,
    "tau_neg": 9.0,
}
SETTINGS = [
    pytest.param(algorithm, settings, id="-".join([name, *settings]))
    for name, algorithm in ALGORITHMS.items()
    for settings in ({}, *({own: OTHER[own]} for own in algorithm.names))
]
every_setting = pytest.mark.parametrize(("algorithm", "settings"), SETTINGS)


def stale_tokens(spread=0.8, seed=0):
    """Tokens far from π_old, of both signs and one Â of 0; some rows are short."""
    logp, old_logp, a, mask = random_batch([5, 2, 4, 1, 3], seed, spread)
    a[2, 1] = 0
    weight = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    return Tokens(logp, old_logp * mask, a * mask, mask, weight)


def objective_of(algorithm, tokens, **settings) -> Objective:
    return algorithm.objective(tokens, **algorithm.check_hyperparameters(settings))


def mine(objective, **changed):
    """An algorithm of one's own, made of its objective."""
    return replace(ALGORITHMS["grpo"], name="mine", objective=objective, **changed)


# The objective of every registered method


@every_setting
def test_the_shapes_and_types_of_an_objective(algorithm, settings):
    tokens = stale_tokens()
    value, low, high = objective_of(algorithm, tokens, **settings)
    rows, columns = tokens.mask.shape
    assert value.shape in ((rows, columns), (rows, 1))
    assert value.dtype == torch.float64
    for mark in (low, high):
        assert mark is None or (mark.shape, mark.dtype) == (value.shape, torch.bool)


@every_setting
@pytest.mark.parametrize("z", [1e-9, 1.0, 30.0, -30.0, 1e4, -1e4])
def test_an_objective_is_finite_at_every_ratio(algorithm, settings, z):
    """And so is its gradient, for either sign of the advantage."""
    logp = tensor([[z, -1.0], [z, z]], requires_grad=True)
    old, one = tensor([[0.0, -1.0], [0.0, 0.0]]), torch.ones(2, 2)
    for a in (one, -one, tensor([[1.0, -1.0], [0.0, 3.0]])):
        tokens = Tokens(logp, old, a, one, one)
        value = objective_of(algorithm, tokens, **settings).value
        assert value.isfinite().all()
        assert grad(value.sum(), logp)[0].isfinite().all()


@every_setting
@given(c=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_an_objective_is_proportional_to_the_advantage(algorithm, settings, c, seed):
    """value(c Â) = c value(Â) for c > 0, with the same tokens clipped.

    The size of the advantages is the reward's unit: it must not decide what is clipped.
    """
    tokens = stale_tokens(seed=seed)
    one = objective_of(algorithm, tokens, **settings)
    scaled = tokens._replace(advantages=c * tokens.advantages)
    other = objective_of(algorithm, scaled, **settings)
    assert_close(other.value, c * one.value, rtol=1e-12, atol=1e-12)
    slopes = [grad(x.value.sum(), tokens.logp)[0] for x in (one, other)]
    assert_close(slopes[1], c * slopes[0], rtol=1e-12, atol=1e-12)
    for before, after in zip(one[1:], other[1:], strict=True):
        assert before is after is None or torch.equal(before, after)


@every_setting
def test_no_objective_acts_without_an_advantage(algorithm, settings):
    """Where Â is 0 throughout, the trainer may skip the pass: there is no gradient."""
    assert algorithm.acts_without_advantage(**settings) is False
    tokens = stale_tokens()
    idle = tokens._replace(advantages=torch.zeros_like(tokens.mask))
    value = objective_of(algorithm, idle, **settings).value
    assert grad(value.sum(), tokens.logp)[0].abs().max() == 0


@every
def test_one_ratio_says_whether_a_response_shares_its_ratio(algorithm):
    """Whether the gradient of token 0 changes when only token 1 does."""

    def slope(second):
        logp = tensor([[0.01, second]], requires_grad=True)
        one = torch.ones(1, 2)
        tokens = Tokens(logp, torch.zeros(1, 2), one, one, one)
        value = objective_of(algorithm, tokens).value
        return grad((value * one).sum(), logp)[0][0, 0].item()

    shared = abs(slope(-0.3) - slope(-0.4)) > 1e-3
    assert shared == algorithm.one_ratio


@pytest.mark.parametrize(
    ("algorithm", "settings"), [p for p in SETTINGS if p.values[1]]
)
def test_every_hyperparameter_acts(algorithm, settings):
    """On a batch in which tokens, and whole responses, lie beyond every bound."""
    logp, old_logp, a, mask = random_batch([6] * 40, spread=0.8)
    tokens = Tokens(logp.detach(), old_logp, a, mask, mask)
    changed, plain = (
        objective_of(algorithm, tokens, **given).value for given in (settings, {})
    )
    assert not torch.equal(changed, plain)


# What an objective is given


def seen_by(logp, old_logp, advantages, mask, weight=None) -> Tokens:
    """The tokens that reach an objective."""
    found = []

    def watch(t):
        found.append(t)
        return Objective(t.logp * t.advantages)

    mine(watch).policy_loss(logp, old_logp, advantages, mask, weight)
    return found[0]


@pytest.mark.parametrize(
    ("given", "raised"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_an_objective_sees_clean_floats(given, raised):
    """All (B, T), zero outside the mask whatever stood there, half precision raised."""
    logp, old_logp, a, mask = random_batch([3, 1])
    spoiled = torch.where(mask.bool(), 0.0, math.nan)
    batch = [(x.detach() + spoiled).to(given) for x in (logp, old_logp, a, mask / 4)]
    tokens = seen_by(*batch[:3], mask.bool(), batch[3])
    for name, tensor_, source in zip(
        ("logp", "old_logp", "advantages", "weight"),
        (tokens.logp, tokens.old_logp, tokens.advantages, tokens.weight),
        batch,
        strict=True,
    ):
        assert (tensor_.shape, tensor_.dtype) == (mask.shape, raised), name
        here = mask.bool()
        assert torch.equal(tensor_[here], source[here].to(raised)), name
        assert tensor_[~here].abs().max() == 0, name
    assert torch.equal(tokens.mask, mask.to(raised))
    assert_close(tokens.z, (tokens.logp - tokens.old_logp), rtol=0, atol=0)


def test_only_logp_carries_a_gradient_into_an_objective():
    logp, old_logp, a, mask = random_batch([3, 1])
    tokens = seen_by(logp, old_logp.requires_grad_(), a, mask)
    assert tokens.logp.requires_grad and tokens.z.requires_grad
    assert not any(x.requires_grad for x in tokens[1:])


# What a loss makes of it


@every
def test_a_loss_is_minus_the_sum_of_weight_times_objective(algorithm):
    t = stale_tokens()
    expected = -(objective_of(algorithm, t).value * t.weight).sum()
    loss = algorithm.policy_loss(*t).loss
    assert_close(loss, expected, rtol=0, atol=1e-15)
    slopes = [grad(x, t.logp)[0] for x in (loss, expected)]
    assert_close(slopes[0], slopes[1], rtol=0, atol=1e-15)


@every
def test_a_loss_is_linear_in_the_weight_that_is_given(algorithm):
    """So slices add up, and a truncated weight multiplies."""
    t = stale_tokens()
    other = torch.rand(t.mask.shape, generator=torch.Generator().manual_seed(2))

    def loss(weight):
        return algorithm.policy_loss(*t[:4], weight).loss

    assert_close(loss(t.weight) + loss(other), loss(t.weight + other))
    assert_close(loss(-2 * t.weight), -2 * loss(t.weight))
    assert loss(torch.zeros_like(t.mask)).item() == 0
    assert (loss(t.weight) - loss(other)).abs() > 1e-3


def test_one_value_for_a_response_counts_at_each_of_its_tokens():
    """(B, 1): 2 and 3 with weights ½, ¼ and 1: −(2 · ¾ + 3)."""
    value = tensor([[2.0], [3.0]])
    loss = mine(lambda t: Objective(value)).policy_loss(
        torch.zeros(2, 2),
        torch.zeros(2, 2),
        torch.ones(2),
        mask_of([2, 1]),
        tensor([[0.5, 0.25], [1.0, 7.0]]),
    )
    assert loss.loss.item() == -4.5


@pytest.mark.parametrize("shape", [(3, 4), (3, 1)])
def test_an_objective_may_be_anything_outside_the_mask(shape):
    """A row without tokens has no mean; its weight is 0, but NaN · 0 is NaN."""
    logp, old_logp, a, mask = random_batch([3, 0, 4])

    def nan_outside(t):
        outside = t.mask.sum(-1, keepdim=True) == 0 if shape[1] == 1 else t.mask == 0
        mean = (t.z * t.advantages).sum(-1, keepdim=True)
        return Objective((mean + 0 * t.z)[:, : shape[1]].masked_fill(outside, math.nan))

    loss = mine(nan_outside).policy_loss(logp, old_logp, a, mask).loss
    assert loss.isfinite()
    assert grad(loss, logp)[0].isfinite().all()


# Whether an objective of one's own acts where no reward differs


def test_a_term_free_of_the_advantage_is_noticed():
    def leashed(t, *, leash: float = 0.1):
        return Objective(t.z.exp() * t.advantages - leash * t.z**2)

    assert mine(leashed).acts_without_advantage() is True
    assert mine(leashed).acts_without_advantage(leash=0.0) is False
    entropy = mine(lambda t: Objective(t.z * t.advantages - 0.01 * t.logp))
    assert entropy.acts_without_advantage() is True


def test_a_term_that_acts_on_one_side_only_is_noticed():
    """The four tokens that are tried lie on both sides of π_old, and on it."""
    for side in (1, -1):
        hinge = mine(lambda t, side=side: Objective(-(side * t.z).clamp(min=0)))
        assert hinge.acts_without_advantage() is True


def test_an_objective_without_any_gradient_does_not_act():
    assert mine(lambda t: Objective(t.mask)).acts_without_advantage() is False
    gate = from_gate(lambda r, a: torch.ones_like(r))
    assert gate.acts_without_advantage() is False


# What is refused


def objectives():
    """(an objective, the sentence with which it is refused)."""
    must = "the objective of mine must"
    shape = f"{must} have a value of shape (B, T) = (2, 3) or (B, 1) = (2, 1), got"
    a_tensor = "return an Objective(value, low, high), got"
    yield "bare", lambda t: t.z, f"{must} {a_tensor} Tensor"
    yield "nothing", lambda t: None, f"{must} {a_tensor} NoneType"
    yield "tuple", lambda t: (t.z, None, None), f"{must} {a_tensor} tuple"
    yield "number", lambda t: Objective(1.0), f"{shape} float"
    yield "none", lambda t: Objective(None), f"{shape} NoneType"
    yield "scalar", lambda t: Objective(t.z.sum()), f"{shape} ()"
    yield "row", lambda t: Objective(t.z.sum(-1)), f"{shape} (2,)"
    yield "column", lambda t: Objective(t.z[:1]), f"{shape} (1, 3)"
    yield "short", lambda t: Objective(t.z[:, 1:]), f"{shape} (2, 2)"
    marks = shape.replace("value", "low")
    yield "low", lambda t: Objective(t.z, low=t.z[0] > 1), f"{marks} (3,)"
    marks = f"{must} mark tokens in high with True and False, got torch.float64"
    yield "float", lambda t: Objective(t.z, high=t.z), marks
    where = "the objective of mine is not finite at row 0, token 1, where log r = 0.5"
    yield "nan", lambda t: Objective(t.z.where(t.z < 0.4, math.nan)), where
    yield "inf", lambda t: Objective(t.z.where(t.z < 0.4, math.inf)), where


WRONG = [pytest.param(f, m, id=name) for name, f, m in objectives()]


@pytest.mark.parametrize(("objective", "message"), WRONG)
def test_an_objective_that_breaks_the_contract_is_refused(objective, message):
    logp = tensor([[0.0, 0.5, 0.1], [0.2, 0.0, 0.9]], requires_grad=True)
    old_logp, mask = torch.zeros(2, 3), mask_of([3, 2])
    with pytest.raises(ValueError, match="the objective of mine") as caught:
        mine(objective).policy_loss(logp, old_logp, torch.ones(2), mask)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("objective", "message"), [p for p in WRONG if p.id not in ("short", "nan", "inf")]
)
def test_it_is_refused_where_the_trainer_asks_first(objective, message):
    """Two rows of two tokens, where `short` is (B, 1)."""
    with pytest.raises(ValueError, match="the objective of mine must"):
        mine(objective).acts_without_advantage()


def test_an_objective_that_divides_by_the_advantage_is_refused_at_zero():
    def divides(t):
        return Objective(t.z * t.advantages / t.advantages)

    with pytest.raises(ValueError, match="of mine is not finite at row 0, token 0, wh"):
        mine(divides).acts_without_advantage()


# Hyperparameters are plain numbers, whatever they came as


@every_setting
@pytest.mark.parametrize("made", [np.array, tensor], ids=["numpy", "torch"])
def test_a_numpy_or_torch_scalar_is_taken_as_a_plain_number(algorithm, settings, made):
    given = {name: made(value) for name, value in settings.items()}
    found = algorithm.check_hyperparameters(given)
    assert found == algorithm.check_hyperparameters(settings)
    assert {type(value) for value in found.values()} <= {float, bool}
    json.dumps(found)  # so a checkpoint can hold them
    t = stale_tokens()
    losses = [algorithm.policy_loss(*t, **x).loss.item() for x in (given, settings)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.float16(0.5)])
def test_numpy_s_own_scalars_are_numbers_too(value):
    found = ALGORITHMS["ppo"].check_hyperparameters({"epsilon_high": value})
    assert found == {"epsilon_high": 0.5}
    assert type(found["epsilon_high"]) is float
    whole = ALGORITHMS["cispo"].check_hyperparameters({"max_ratio": np.int64(3)})
    assert type(whole["max_ratio"]) is float
    switch = ALGORITHMS["reinforce"].check_hyperparameters({"correct": np.bool_(True)})
    assert switch["correct"] is True


@pytest.mark.parametrize("value", [np.array([0.1]), tensor([0.1, 0.2]), [0.1], "0.1"])
def test_an_array_is_not_a_number(value):
    with pytest.raises(
        ValueError, match=r"^epsilon_high must be a number > 0, got .*1"
    ):
        ALGORITHMS["ppo"].check_hyperparameters({"epsilon_high": value})


@pytest.mark.parametrize("bad", [np.float32("nan"), tensor(math.inf), np.array(-1.0)])
def test_a_scalar_out_of_range_is_refused_as_its_number(bad):
    with pytest.raises(ValueError, match=r"^epsilon_high must be a .*number > 0, got "):
        ALGORITHMS["ppo"].check_hyperparameters({"epsilon_high": bad})


def test_an_annotation_is_the_range_of_ones_own_hyperparameter():
    """Written as pydantic writes it; without one, anything is passed on."""

    def own(t, *, share: Share = 0.5, anything=None):
        return Objective(share * t.z * t.advantages)

    algorithm = mine(own)
    assert dict(algorithm.defaults) == {"share": 0.5, "anything": None}
    assert algorithm.check_hyperparameters({"anything": "x"}) == {"anything": "x"}
    with pytest.raises(
        ValueError, match=r"^share must be a number in \[0, 1\], got 2$"
    ):
        algorithm.check_hyperparameters({"share": 2})
    with pytest.raises(TypeError, match=r"^mine has no setting 'shares', did you mean"):
        algorithm.check_hyperparameters({"shares": 0.1})
