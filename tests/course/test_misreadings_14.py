"""Misreadings of engines, ranks and old samplers, held against the package."""

import pytest
import torch
from torch.testing import assert_close

from course import ranks
from course.misreadings import MISREADINGS
from refimpl import normalisers
from refimpl.algorithms import ALGORITHMS
from refimpl.collect import collect
from refimpl.config import TrainConfig
from refimpl.importance import truncated_weight
from refimpl.scoring import log_probs
from refimpl.trainer import prepare


def both(name, *arguments):
    """What the wrong one and the right one say."""
    pair = MISREADINGS[name]
    return pair.wrong(*arguments), pair.right(*arguments)


def test_scale_mean_of_means():
    """Eight losses of 1 and two of 6: (1 + 6) / 2, and 20 / 10."""
    wrong, right = both("scale_mean_of_means", [torch.ones(8), 6 * torch.ones(2)])
    assert (wrong.item(), right.item()) == (3.5, 2.0)


def test_ranks_of_one_length_have_both_alike():
    wrong, right = both("scale_mean_of_means", [torch.arange(4.0), torch.ones(4)])
    assert wrong == right


def test_the_right_mean_is_the_packages_token_mean():
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    losses = torch.tensor([[1.0, 2, 3, 4], [5, 6, 0, 0]])
    _, right = both("scale_mean_of_means", [losses[0], losses[1, :2]])
    assert_close(right, (normalisers.token_mean(mask) * losses).sum())


@pytest.mark.parametrize("own", [True, False])
def test_two_ranks_and_one_process(own):
    """The mean over ranks, as DDP takes it, of what each of them computes."""
    tokens = [sum(lengths) for lengths in ranks.LENGTHS]
    shares = [1.0 if own else 2 * n / sum(tokens) for n in tokens]
    parts = [
        ranks.gradient(lengths, range(4 * rank, 4 * rank + 4), share)
        for rank, (lengths, share) in enumerate(zip(ranks.LENGTHS, shares))
    ]
    found = (sum(parts) / 2).item()
    if own:
        assert found > 0 > ranks.in_one_process()  # of the other sign
    else:
        assert found == pytest.approx(ranks.in_one_process(), abs=1e-14)


def test_the_example_weighs_short_answers_ten_times():
    long, short = (sum(lengths) for lengths in ranks.LENGTHS)
    assert (long, short) == (160, 16)


@pytest.mark.parametrize(
    ("settings", "wrong", "right"),
    [((1, 1, 1), 1, 1), ((1, 16, 4), 1, 4), ((2, 16, 4), 2, 8), ((3, 4, 4), 3, 3)],
)
def test_scale_k_is_num_iterations(settings, wrong, right):
    assert both("scale_k_is_num_iterations", *settings) == (wrong, right)


def test_scale_corrected_twice():
    """0.2 at the sampler, 0.3 at π_old, before any update: 1.5², and 1.5."""
    sampler, old = torch.tensor([0.2, 0.3]).double().log()
    wrong, right = both("scale_corrected_twice", old, old, sampler, 2.0)
    assert (wrong.item(), right.item()) == pytest.approx((2.25, 1.5))


def test_the_cap_holds_for_the_weight_alone():
    sampler, old, now = torch.tensor([0.1, 0.5, 0.6]).double().log()
    wrong, right = both("scale_corrected_twice", now, old, sampler, 2.0)
    assert (wrong.item(), right.item()) == pytest.approx((2 * 6.0, 2 * 1.2))


def test_the_right_factor_is_the_packages():
    """REINFORCE's coefficient with truncated weights, at r ≠ 1."""
    dice = torch.Generator().manual_seed(0)
    old, sampler, logp = (
        -torch.rand(2, 3, generator=dice, dtype=torch.float64) for _ in range(3)
    )
    mask, ones = torch.ones(2, 3).double(), torch.ones(2).double()
    weight = mask * truncated_weight(old, sampler, mask, 1.3)
    logp.requires_grad_()
    method = ALGORITHMS["reinforce"]
    loss = method.policy_loss(logp, old, ones, mask, weight, correct=True).loss
    found = -torch.autograd.grad(loss, logp)[0]
    _, right = both("scale_corrected_twice", logp.detach(), old, sampler, 1.3)
    assert_close(found, right)


def test_a_sampler_that_lags_is_not_pi_old():
    """Its log-probs are those of other weights, unless it is taken for π_old."""
    gaps = {}
    for trusted in (False, True):
        config = TrainConfig(
            sampler_delay=1,
            trust_sampler=trusted,
            prompts_per_rollout=4,
            max_new_tokens=12,
        )
        run = prepare("grpo", config)
        collect(run, 0)
        with torch.no_grad():
            for weight in run.model.parameters():
                weight.mul_(1.02)
        batch, _ = collect(run, 1)
        now, _ = log_probs(run.model, batch.rollout)
        mask = batch.rollout.mask
        gaps[trusted] = ((now - batch.old_logp).abs() * mask).max().item()
    assert gaps[False] < 1e-4 < 0.01 < gaps[True]
