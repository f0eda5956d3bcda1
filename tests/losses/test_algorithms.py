"""What every method promises, and what is refused; the papers' entries.

Which numbers a hyperparameter may be is in `tests/test_bad_input.py`. Tests over
`ALGORITHMS` hold for any method, also one registered tomorrow that stands in no table
here; tables hold for the names that are in them.
"""

import math
import warnings
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS, Objective, Tokens, get
from refimpl.gate import from_gate
from refimpl.options import has_penalty
from refimpl.validation import UserError
from tests.losses.batches import (
    FLOAT64,
    INF,
    NAN,
    every,
    loss_and_slope,
    loss_of,
    mask_of,
    random_batch,
)

pytestmark = FLOAT64
GRPO = ALGORITHMS["grpo"]


def test_vespo_limits_the_log_ratio_of_each_token_before_it_adds_them():
    """One token's 30 counts as 20, so that with −18 of the other W = e^2."""
    logp, old = tensor([[-1.0, -30.0]], requires_grad=True), tensor([[-31.0, -12.0]])
    loss = get("vespo").policy_loss(logp, old, tensor([1.0]), torch.ones(1, 2)).loss
    slope = math.exp(2 * 2 + 3 * (1 - math.exp(2))) / 2
    assert_close(grad(loss, logp)[0], tensor([[-slope] * 2]), rtol=1e-9, atol=0)


def test_a_kl_that_is_no_number_is_outside_of_dppos_bound():
    """π_old = 0, as where top-p removed the token: 0 · −∞ + log 1/(1 − π)."""
    one = torch.ones(1, 1)
    tokens = Tokens(tensor([[-1.0]]), tensor([[-INF]]), one, one, one)
    found = get("dppo_kl").objective(tokens)
    assert (found.value.item(), found.high.item()) == (0, True)


TWO = {"epsilon_low": 0.2, "epsilon_high": 0.2, "dual_clip": None}
NARROW = {"epsilon_low": 3e-4, "epsilon_high": 4e-4, "dual_clip": None}
CAP = {"max_ratio": 5.0, "mask_epsilon_low": None, "mask_epsilon_high": None}
LOG = {"epsilon_low": 0.4, "epsilon_high": 0.4}
DELTA = {"delta_low": 0.2, "delta_high": 0.2, "max_ratio": 20.0}
NATS = DELTA | {"delta_low": 0.05, "delta_high": 0.05}
BOTH = {"epsilon_low": 0.2, "epsilon_high": 0.2}
LONGER = NARROW | {"epsilon_low": 2e-3, "epsilon_high": 2.5e-3}
KERNEL = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
BY_ROW, BY_TOKEN = "seq_mean_token_mean", "token_mean"
SUMMED = "seq_mean_token_sum"
PAPERS = {  # in chapter order: hyperparameters, normaliser, advantages
    "reinforce": ({"correct": False}, BY_ROW, "leave_one_out"),
    "ppo": (TWO, BY_TOKEN, "gae"),
    "grpo": (TWO, BY_ROW, "group_relative"),
    "dr_grpo": (TWO, "constant", "group_centred"),
    "gspo": (NARROW, BY_ROW, "group_relative"),
    "gspo_token": (NARROW, BY_ROW, "group_relative"),
    "dapo": ({**TWO, "epsilon_high": 0.28}, BY_TOKEN, "group_relative"),
    "cispo": (CAP, BY_TOKEN, "group_relative"),
    "gmpo": (LOG, BY_ROW, "group_relative"),
    "rspo": (LOG, BY_ROW, "group_relative"),
    "sapo": ({"tau_pos": 1.0, "tau_neg": 1.05}, BY_ROW, "group_relative"),
    "dppo_tv": (DELTA, BY_TOKEN, "group_relative"),
    "dppo_kl": (NATS, BY_TOKEN, "group_relative"),
    "ipo": ({"delta": 0.3, "tau": 0.0, "max_ratio": 1e4}, BY_TOKEN, "group_centred"),
    "glm5": (BOTH, BY_TOKEN, "group_relative"),
    "sao": ({"epsilon_low": 0.3, "epsilon_high": 5.0}, BY_TOKEN, "gae"),
    "flash_reinforce": ({"delta": 3e-3}, BY_ROW, "batch_centred"),
    "vespo": (KERNEL, BY_TOKEN, "group_relative"),
    "luspo": (LONGER, SUMMED, "group_relative"),
    "minirl": (TWO | {"epsilon_high": 0.27}, SUMMED, "group_centred"),
    "dro": ({"tau": 0.1}, BY_TOKEN, "group_centred"),
    "kimi": ({"low": 1.609, "high": 1.609, "tau": 1e-3}, BY_TOKEN, "group_centred"),
}
ON_THE_SAMPLER = {"dppo_tv", "dppo_kl", "ipo", "glm5", "sao", "vespo", "kimi"}
ON_THE_SAMPLER |= {"flash_reinforce"}
"""Their ratio is against the sampler's policy, not π_old."""
DAPO = {"dynamic_sampling": True, "overlong_share": 0.2}
TWO_LAMBDAS = {"lam_alpha": 1.5, "lam_critic": 1.0}
OF_SAO = {**TWO_LAMBDAS, "critic_updates": 2, "critic_frozen": ("attn",)}
TRAINING = {"dapo": DAPO, "rspo": {"router_shift": True}, "sao": OF_SAO}


def another(default):
    """A value that a hyperparameter does not have by default."""
    if default is None:
        return 1.1
    return True if default is False else default * 1.5 or 0.5


SETTINGS = [
    pytest.param(method, chosen, id="-".join([name, *chosen]))
    for name, method in ALGORITHMS.items()
    for chosen in ({}, *({k: another(v)} for k, v in method.defaults.items()))
]
every_setting = pytest.mark.parametrize(("algorithm", "chosen"), SETTINGS)


def penalised(algorithm, chosen) -> bool:
    """Whether a term of the squared log-ratio stands beside the advantage's."""
    return algorithm.name in ("dro", "kimi") or "tau" in chosen


@pytest.mark.parametrize("name", PAPERS)
def test_an_entry_is_the_paper_s(name):
    assert [key for key in ALGORITHMS if key in PAPERS] == list(PAPERS)
    one = ALGORITHMS[name]
    names = one.normaliser.__name__, one.advantages.__name__
    assert (dict(one.defaults), *names) == PAPERS[name]
    assert dict(one.training) == TRAINING.get(name, {})
    assert one.critic == (name in ("ppo", "sao"))
    assert one.annotations.keys() - {"epsilon"} == one.defaults.keys()
    assert (one.anchor == "sampler") == (name in ON_THE_SAMPLER)


@every
def test_an_entry_is_consistent(algorithm):
    """Found by its name, after its parent, with defaults that are in their ranges."""
    names = list(ALGORITHMS)
    assert get(algorithm.name) is algorithm
    if algorithm.parent is not None:
        assert names.index(algorithm.parent) < names.index(algorithm.name)
    assert algorithm.check_hyperparameters(algorithm.defaults) == algorithm.defaults
    both = {"epsilon_low": 0.1, "epsilon_high": 0.3}  # what is named goes before
    assert GRPO.check_hyperparameters({"epsilon": 0.1, "epsilon_high": 0.3}) == both


def stale_tokens(spread=0.8, seed=0):
    """Tokens far from π_old, of both signs and one Â of 0; some rows are short."""
    logp, old_logp, a, mask = random_batch([5, 2, 4, 1, 3], seed, spread)
    a[2, 1] = 0
    weight = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    return Tokens(logp * mask, old_logp * mask, a * mask, mask, weight)


def objective_of(algorithm, tokens, **given) -> Objective:
    """Its value 0 outside the mask, where it may be anything."""
    given = algorithm.check_hyperparameters(given)
    value, low, high = algorithm.objective(tokens, **given)
    return Objective(torch.where(tokens.mask.bool(), value, 0.0), low, high)


def slope_of(value, tokens):
    return grad(value.sum(), tokens.logp)[0]


@every
def test_one_ratio_says_whether_a_response_shares_its_ratio(algorithm):
    """Whether the gradient of token 0 changes when only token 1 does. A gate that
    drops a whole response only takes it away."""
    slopes, seconds = set(), (-0.4, -0.3, -2e-4, -1e-4, 0.0, 1e-4, 2e-4, 0.3, 0.4)
    for a, second in product((1.0, -1.0), seconds):
        logp, one = tensor([[1e-5, second]], requires_grad=True), torch.ones(1, 2)
        tokens = Tokens(logp, 0 * one, a * one, one, one)
        slope = slope_of(objective_of(algorithm, tokens).value, tokens)
        if slope[0, 0]:
            slopes.add((a, round(slope[0, 0].item(), 9)))
    assert (len(slopes) > 2) == algorithm.one_ratio


@every_setting
def test_whether_an_objective_acts_without_an_advantage_is_known(algorithm, chosen):
    """Where Â is 0 throughout and it does not, the trainer skips the pass."""
    tokens = stale_tokens()
    idle = replace(tokens, advantages=torch.zeros_like(tokens.mask))
    value = objective_of(algorithm, idle, **chosen).value
    acts = value.requires_grad and slope_of(value, tokens).abs().max() > 0
    checked = algorithm.check_hyperparameters(chosen)
    assert has_penalty(algorithm, checked) == acts
    assert acts == penalised(algorithm, chosen) or algorithm.name not in PAPERS


def mine(objective, **other):
    """An algorithm of one's own, made of its objective."""
    return replace(GRPO, name="mine", objective=objective, **other)


@every
def test_a_gradient_flows_through_logp_alone(algorithm):
    """Also where a user's advantages are returns − critic(…), or come from `loss`."""
    logp, old, advantages, mask = random_batch([3, 5, 1], spread=0.1)
    weight = mask / 9
    for paid in (advantages, advantages[..., 0]):
        others = [x.clone().requires_grad_() for x in (old, paid, weight)]
        now = logp.detach().clone().requires_grad_()
        given = now, *others[:2], mask, others[2]
        result = algorithm.policy_loss(*given)
        inner, _ = algorithm.loss(*given, **algorithm.defaults)
        (result.loss + inner).backward()
        assert now.grad.abs().sum() > 0 and [x.grad for x in others] == [None] * 3


@pytest.mark.parametrize("epsilon", [0.1, 0.2])
def test_a_bound_of_the_wrong_size_for_gspo_is_warned_of(epsilon):
    with pytest.warns(UserWarning, match="bound for token ratios"):
        loss_of(ALGORITHMS["gspo"], *random_batch([3, 5, 1]), epsilon=epsilon)


def test_a_gate_that_turns_a_push_round_is_warned_of_once(recwarn):
    """Where it is negative at some tokens, or 0, that is its author's affair."""
    batch = random_batch([9, 9, 9, 9])
    for highest in (0.0, 1.0):
        loss_of(from_gate(lambda r, a, x=highest: torch.where(r > 1, -x, x)), *batch)
    assert not recwarn
    warnings.simplefilter("always")
    for factor in (1, 2):  # r and Â are no part of a gate
        turned = from_gate(lambda r, a, factor=factor: factor * r * a)
        for _ in range(2):
            loss_of(turned, *batch)
    said = [str(w.message) for w in recwarn]
    assert ["negative at every bad" in words for words in said] == [True, True]
    assert said[0] != said[1]  # or Python would keep the second back


@pytest.mark.parametrize("width", [4, 1])
def test_an_objective_may_be_anything_outside_the_mask(width):
    """A row without tokens has no mean; its weight is 0, but NaN · 0 is NaN."""
    logp, old_logp, a, mask = random_batch([3, 0, 4])

    def nan_outside(t):
        outside = t.mask.sum(-1, keepdim=True) == 0 if width == 1 else t.mask == 0
        mean = (t.z * t.advantages).sum(-1, keepdim=True)
        return Objective((mean + 0 * t.z)[:, :width].masked_fill(outside, NAN))

    loss, slope = loss_and_slope(mine(nan_outside), logp, old_logp, a, mask)
    assert loss.isfinite() and slope.isfinite().all()


@every_setting
def test_every_ratio_has_finite_numbers(algorithm, chosen):
    """Loss, gradient and metrics, which are plain floats; and a response beside keeps
    its gradient. From bfloat16, which is computed with in float32."""
    half = {"dtype": torch.bfloat16}
    old_logp, one = torch.full((2, 2), -1.0, **half), torch.ones(2, 2, **half)
    signs = one, -one, tensor([[1.0, -1.0], [0.0, 3.0]])
    for z, a in product((0.0, 50.0, -50.0, 200.0, -200.0, 1e4, -1e4), signs):
        logp = tensor([[z, -1.0], [-1.0, -1.0]], requires_grad=True, **half)
        batch = (logp, old_logp, a, one, one / 4)
        loss, metrics = algorithm.policy_loss(*batch, **chosen)
        (slope,) = grad(loss, logp)
        assert torch.finfo(loss.dtype).bits >= 32
        assert loss.isfinite() and slope.isfinite().all()
        assert all(type(x) is float and math.isfinite(x) for x in metrics.values())
        if algorithm.name in PAPERS:
            assert (slope[1] * a[1])[a[1] != 0].lt(0).all()


@pytest.mark.parametrize(
    ("objective", "by_shape"),
    [
        (lambda t: t.z, True),
        (lambda t: Objective(t.z[:1]), True),
        (lambda t: Objective(t.z[:, 1:]), True),
        (lambda t: Objective(t.z.where(t.z < 0.4, NAN)), False),
        (lambda t: Objective(t.z.detach()), False),
    ],
)
def test_an_objective_that_breaks_the_contract_is_refused(objective, by_shape):
    """In an update by its shape alone, because another one would be broadcast."""
    logp = tensor([[0.0, 0.5, 0.1], [0.2, 0.0, 0.9]], requires_grad=True)
    batch = logp, torch.zeros(2, 3), torch.ones(2), mask_of([3, 2])
    with pytest.raises(UserError, match="the objective of mine"):
        mine(objective).policy_loss(*batch)
    if by_shape:
        with pytest.raises(UserError, match="the objective of mine"):
            mine(objective).loss(*batch, batch[-1] / 5)
