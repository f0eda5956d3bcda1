"""Each misreading parts from its correction, and the package sides with the latter.

`CASES` holds the package beside every one that it can answer to, `VALUES` has numbers
that are worked out by hand; what takes more has a test of its name. What else the wrong
ones say is printed in the chapters, whose outputs are compared.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from course.kit.misreading import misreading, misreadings
from refimpl import ALGORITHMS, Scored, kl, moe, normalisers
from refimpl.rewards import overlong_punishment

pytestmark = pytest.mark.usefixtures("float64")
LIMIT = 10


def both(name, *arguments):
    """What the wrong one and the right one say."""
    entry = misreading(name)
    return entry.wrong(*arguments), entry.right(*arguments)


def f64(*rows):
    return tensor(rows, dtype=torch.float64)


def ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def slope(function, *arguments):
    """The gradient of the function's sum in its first argument, as a list."""
    x = arguments[0].detach().clone().requires_grad_()
    return grad(function(x, *arguments[1:]).sum(), x)[0].tolist()


def loss(name, normaliser=None):
    """(logp, old_logp, advantages, mask, …) → the method's loss."""
    method = ALGORITHMS[name]

    def of_batch(logp, old_logp, advantages, mask, *more):
        weight = None if normaliser is None else normaliser(mask, *more)
        return method.policy_loss(logp, old_logp, advantages, mask, weight).loss

    return of_batch


def with_rewards(name, normaliser=None):
    """The same of one group, with rewards in place of advantages."""
    method, of_batch = ALGORITHMS[name], loss(name, normaliser)

    def of_rewards(logp, old_logp, rewards, *more):
        group = torch.zeros(len(rewards), dtype=torch.long)
        advantages = method.advantages(Scored(rewards, group))
        return of_batch(logp, old_logp, advantages, *more)

    return of_rewards


def by_ratio(name, **settings):
    """(ratio, advantage) of responses of one token → the sum of their objectives."""

    def objective(r, advantage):
        logp, one = r.log()[:, None], ones(len(r), 1)
        batch = logp, 0 * one, advantage.expand(len(r)), one, one
        return -ALGORITHMS[name].policy_loss(*batch, **settings).loss

    return objective


def cispo(logp, old_logp, advantages, cap):
    batch = logp[None], old_logp[None], advantages[None], torch.ones_like(logp)[None]
    return -ALGORITHMS["cispo"].policy_loss(*batch, max_ratio=cap).loss


def rspo(z, advantage, gamma):
    """GMPO is this with γ = 1."""
    one = ones(1, len(z))
    weight = normalisers.seq_mean_token_mean(one)
    old_logp, weight = moe.shifted(0 * one, weight, one, gamma[None], "after_clip")
    batch = z[None], old_logp, advantage[None], one, weight
    return -ALGORITHMS["rspo"].policy_loss(*batch).loss


def gmpo(z, advantage):
    return rspo(z, advantage, torch.ones_like(z))


def sapo(z, advantages, mask, tau_pos, tau_neg):
    batch, taus = (z, 0 * z, advantages, mask), {"tau_pos": tau_pos, "tau_neg": tau_neg}
    return -ALGORITHMS["sapo"].policy_loss(*batch, **taus).loss


def token_mean(per_token, mask, rows):
    """Made for the whole batch, then cut into micro-batches."""
    parts = per_token.split(rows), normalisers.token_mean(mask).split(rows)
    return sum((x * w).sum() for x, w in zip(*parts, strict=True))


def ragged(scale=0.4):
    """Four responses of 1 to 6 tokens whose log-ratios are of size `scale`."""
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(4, 6, generator=generator) * scale
    mask = (torch.arange(6) < tensor([[6], [1], [4], [3]])).double()
    old_logp = -torch.rand(4, 6, generator=generator) - 0.1
    return old_logp + z * mask, old_logp, f64(1.0, -1.0, 0.7, -0.4), mask


def credited(scale):
    """The same, with an advantage that differs from token to token."""
    logp, old_logp, advantages, mask = ragged(scale)
    return logp, old_logp, advantages[:, None] * mask * torch.arange(6.0), mask


CLIPPED = f64(0.5, 1.1, 1.5, 0.5, 1.1, 1.5), f64(1, 1, 1, -1, -1, -1)
POLICY = (
    f64(0.5, -1.0, 0.2, 1.3).log_softmax(-1),
    f64(0, 0.4, -0.9, 0.8).log_softmax(-1),
)
CONSTANT, LENGTHS = normalisers.constant, torch.arange(1.0, 30000, 7).double()
GROUP = *ragged()[:2], f64(1, 0, 0, 1), ragged()[3]
TOKENS = f64([1, 1, 1], [5, 0, 0]), f64([1, 1, 1], [1, 0, 0]), 1
CISPO = f64(-1.5, -1.7, -1.7, -3.0), f64(-4, -0.5, -2, -3), f64(1, 1, -1.5, 0.7), 5.0
GMPO = [(f64(0.9, -0.1, 0.2), f64(1)[0]), (f64(-0.9, 0.7, 0.0), f64(-1.5)[0])]
GAMMA = f64(0.9, 0.72, 1.0)
RSPO = [(*one, GAMMA) for one in GMPO]
STALE = f64([0.5, -0.4, 0.1], [-0.6, 0.3, 0.0])
SIGNS = f64([1.0], [-0.5]).expand(2, 3), f64([1, 1, 1], [1, 1, 0])
SOFT = f64(0.3, 0.7, 1.0, 1.4, 2.5)
EQUAL = {"tau_pos": 1.0, "tau_neg": 1.0}

AFTER_SAPO = [  # misreading, method, size of the log-ratios
    ("dppo_bounds_the_ratio", "dppo_tv", 0.3),
    ("dppo_kl_drops_what_is_far", "dppo_kl", 0.8),
    ("ipo_is_one_sided", "ipo", 1.5),
    ("glm5_holds_the_ratio", "glm5", 0.4),
    ("vespo_takes_the_root", "vespo", 0.4),
    ("luspo_divides_by_length", "luspo", 1e-3),
    ("minirl_is_a_token_mean", "minirl", 0.4),
    ("dro_weighs_by_the_ratio", "dro", 0.4),
    ("kimi_clips_as_ppo", "kimi", 2.0),
]

FLASH = ("ratio_in_the_gradient", "rows_leave_the_denominator", "drops_tokens")

CASES = [
    ("clip_on_wrong_sides", by_ratio("ppo"), CLIPPED),
    ("clip_without_min", by_ratio("ppo"), CLIPPED),
    ("recomputed_old_logp", loss("grpo"), ragged()),
    ("summed_log_ratio", loss("grpo"), ragged()),
    ("swapped_kl", kl.k3, POLICY),
    ("mean_of_means", token_mean, TOKENS),
    ("grpo_as_kl", with_rewards("grpo"), GROUP),
    ("constant_is_longest", loss("dr_grpo", CONSTANT), (*ragged(), LIMIT)),
    ("constant_but_std", with_rewards("dr_grpo", CONSTANT), (*GROUP, LIMIT)),
    *(("gspo_without_root", loss("gspo"), ragged(s)) for s in (1e-5, 3e-4, 1e-3)),
    ("gspo_token_of_whole_ratio", loss("gspo_token"), credited(1e-4)),
    ("gspo_at_token_epsilon", loss("gspo"), ragged(1e-3)),
    ("dapo_per_response_mean", loss("dapo"), ragged()),
    ("overlong_beyond_the_limit", overlong_punishment, (LENGTHS, 20480, 4096)),
    ("cispo_clips_both_sides", cispo, CISPO),
    ("cispo_cap_is_an_offset", cispo, CISPO),
    ("cispo_without_stop_gradient", cispo, CISPO),
    *(("gmpo_bounds_are_offsets", gmpo, one) for one in GMPO),
    *(("gmpo_drops_clipped_tokens", gmpo, one) for one in GMPO),
    ("rspo_shift_inside_the_sign", rspo, RSPO[1]),
    *(("rspo_shift_per_token", rspo, one) for one in RSPO),
    *(
        (f"sapo_{name}", sapo, (STALE, *SIGNS, 4.0, 8.0))
        for name in ("on_sequence_ratio", "tau_scales_advantage", "taus_exchanged")
    ),
    *((misread, loss(name), ragged(s)) for misread, name, s in AFTER_SAPO),
    *((f"flash_{name}", loss("flash_reinforce"), ragged(0.06)) for name in FLASH),
    *(
        (f"sapo_{name}", by_ratio("sapo", **EQUAL), (SOFT, a))
        for name in ("counts_ratio_twice", "without_four_over_tau", "becomes_grpo")
        for a in (f64(1)[0], f64(-0.5)[0])
    ),
]


@pytest.mark.parametrize(("name", "package", "arguments"), CASES)
def test_the_package_sides_with_the_right_one(name, package, arguments):
    """In the value and in the gradient; the wrong one does so in neither or in one."""
    entry = misreading(name)
    answers = [
        torch.cat([f(*arguments).sum()[None], tensor(slope(f, *arguments)).flatten()])
        for f in (entry.wrong, entry.right, package)
    ]
    wrong, correct, ours = answers
    assert_close(ours, correct)
    assert (wrong - ours).abs().max() > 1e-3


LOGITS = f64(0.5, 0.3, 0.15, 0.05).log()
# A student (½, ½) of a teacher (0.2, 0.8): ½ (log 0.4 − log 0.8), and the other way
COIN, PUSH = f64([0.5, 0.5], [0.2, 0.8]).log(), [-math.log(2) / 2, math.log(2) / 2]
VALUES = [
    (
        "whitening_spares_solved_prompts",
        f64([1, 1], [1, 0]),
        ([[0, 0], [2**0.5, -(2**0.5)]], [[3**-0.5] * 2, [3**-0.5, -(3**0.5)]]),
    ),
    # the boost is larger for an uneven group, the weight for an even one
    ("std_upweights_extremes", 0, 8, (math.inf, 0)),
    ("std_upweights_extremes", 4, 8, (2, 56**0.5)),
    (
        "dapo_drops_samples",  # only the second group is mixed
        f64([0, 0, 0], [1, 0, 1], [1, 1, 1]),
        ([[0] * 3] * 3, [[0] * 3, [1] * 3, [0] * 3]),
    ),
    (
        "collapse_from_common_tokens",
        *(f64(0.01, 0.5, 0.83, 0.84, 0.9), 0.2),
        ([0, 0, 0, 1, 1], [1, 1, 1, 0, 0]),
    ),
    (
        "long_weighs_less",
        [2, 4, 10],
        ([10 / 17, 5 / 17, 2 / 17], [1 / 8, 1 / 4, 5 / 8]),
    ),
    ("gmpo_objective_is_smaller", f64(1, -1.25), (0.125, 1.125)),
    (
        "mask_without_eos",  # the second response was cut off
        *(tensor([[5, 6, 0, 0], [5, 6, 5, 6]]), 0),
        ([[1, 1, 0, 0], [1] * 4], [[1, 1, 1, 0], [1] * 4]),
    ),
    ("real_pad_is_eos", tensor([7, 5, 1, 1, 1]), 1, ([1, 1, 0, 0, 0], [1, 1, 1, 0, 0])),
    *(
        ("real_sampler_is_old_policy", LOGITS, LOGITS, token, 0.9, (0.95, 1))
        for token in range(3)
    ),
    ("real_pass_with_replacement", 2, 1, 2, (0.75, 1.0)),
    (
        "claims_runs_are_independent",  # means 0.1, 1.1, 2.1: sd 1
        [[0.0, 0.2], [1.0, 1.2], [2.0, 2.2]],
        (math.sqrt(4.06 / 5 / 6), 1 / math.sqrt(3)),
    ),
    ("claims_not_seen_is_none", -0.2, 0.3, 0.03, ("no effect", "undecided")),
    ("claims_not_seen_is_none", -0.02, 0.01, 0.03, ("no effect", "none that matters")),
    ("claims_not_seen_is_none", 0.01, 0.02, 0.03, ("an effect", "none that matters")),
    ("claims_one_significant", (0.25, 0.1), (0.1, 0.1), (True, False)),
    ("claims_one_significant", (0.9, 0.1), (0.3, 0.1), (False, True)),
    ("mask_share_is_gradient_share", f64(1, 1, 1, 0), f64(1, 1, 1, 7), (0.25, 0.7)),
    ("late_clip_shows_nothing", *f64([0, 0], [0, 0], [-1, 0]), (0, 0.5)),
    (
        "late_truncation_is_the_policy",
        *f64([0.75, 0.25], [0.25, 0.75]),
        2,
        ([0.75, 0.25], [2 / 3, 1 / 3]),
    ),
    *(
        (  # μ w is ½ and ⅓, μ's mean reward ⅓
            "late_any_baseline_will_do",
            *(f64(0.5, 0.5).log(), f64(2 / 3, 1 / 3), f64(0, 1), baseline, 1.0),
            ([-wrong, wrong], [-7 / 36, 7 / 36]),
        )
        for baseline, wrong in ((0.0, 1 / 6), (1.0, 1 / 4))
    ),
    ("late_mean_sees_every_token", f64(1, 1, 30).log(), 10, (True, False)),
    ("late_small_tokens_small_answer", f64(0.5, 0.5, 0.5), 3, (True, False)),
    ("scale_mean_of_means", [ones(8), 6 * ones(2)], (3.5, 2)),
    ("scale_k_is_num_iterations", 2, 16, 4, (2, 8)),
    # 0.2 at the sampler, 0.3 at π_old, before any update; then the cap, on one factor
    ("scale_corrected_twice", *f64(0.3, 0.3, 0.2).log(), 2.0, (2.25, 1.5)),
    ("scale_corrected_twice", *f64(0.6, 0.5, 0.1).log(), 2.0, (2 * 6.0, 2 * 1.2)),
    (
        "distil_gate_on_the_teacher",  # π_T/π is 8 and 2, w is 2 and 10
        *(f64([0.1, 0.1], [0.05, 0.01], [0.8, 0.2]).log()),
        *(0.5, 5.0, ([0, 10 * math.log(2)], [2 * math.log(8), 0])),
    ),
    ("norm_limit_is_a_learning_rate", 1.0, 0.5, 2, ([0.5] * 2, [1.0] * 2)),
    ("norm_limit_is_a_learning_rate", 5.0, 2.0, 1, ([0.4], [1.0])),
    ("sao_epsilon_is_a_ratio", f64(0.5, 5.5), 0.3, 5.0, ([1, 0], [0, 1])),
    ("distil_penalty_of_the_state", *COIN, ([0, 0], PUSH)),
    ("distil_k1_as_a_loss", *COIN, ([0, 0], PUSH)),
    ("distil_forward_for_reverse", *COIN, ([-0.3, 0.3], PUSH)),
    (
        "turns_count_the_span",
        f64([0.1, -0.1, 2, 2, 2, 0.05, 0.2, -0.05]),
        f64([1, 1, 0, 0, 0, 1, 1, 1]),
        ([6.2 / 8], [0.2 / 5]),
    ),
    (
        "turns_reward_on_the_observation",
        *(1.0, f64(0.5, 0.5, 0.5, 0.5, 0.5), f64(1, 1, 1, 0, 0), 0.95),
        ([-0.45125, -0.475, -0.5, 0, 0], [0.45125, 0.475, 0.5, 0, 0]),
    ),
    (
        "critic_targets_share_lambda",  # δ = 0.2, 0.5
        *(1.0, f64(0.3, 0.5), 0.5),
        ([0.3 + 0.2 + 0.25, 1.0], [1.0, 1.0]),
    ),
    ("critic_one_lambda_for_all_lengths", f64(4, 20), 0.1, ([0.95, 0.95], [0, 0.5])),
    ("turns_encoded_again", f64(0.3, 0.5).log(), f64(0.6).log(), (4.0, 1.0)),
]


@pytest.mark.parametrize("case", VALUES, ids=lambda case: case[0])
def test_values_by_hand(case):
    name, *arguments, expected = case
    for answer, wanted in zip(both(name, *arguments), expected):
        if isinstance(wanted, str):
            assert answer == wanted
        else:
            assert_close(torch.as_tensor(answer).double(), tensor(wanted).double())


def test_every_entry_is_named_and_tested():
    text, tables = Path(__file__).read_text(encoding="utf-8"), (CASES, VALUES)
    listed = {case[0] for table in tables for case in table}
    for name, entry in misreadings().items():
        assert entry.name == name and entry.claim != entry.correction
        assert name in listed or f"def test_{name}(" in text, name


def test_ratio_is_bounded():
    """Three tokens, A = 1, −½, −½. The first stops at r = 1.2; the others push on.

    They stop at r = 0.8 each, which leaves the first 3 − 2 · 0.8 = 1.4.
    """
    advantages, settings = f64(1, -0.5, -0.5), {"steps": 200, "learning_rate": 0.04}
    entry = misreading("ratio_is_bounded")
    assert entry.wrong(advantages, **settings).max() <= 1.2
    logits, one = (0 * advantages).requires_grad_(), ones(3, 1)
    old_logp = logits.detach().log_softmax(-1)[:, None]
    for _ in range(settings["steps"]):
        logp = logits.log_softmax(-1)[:, None]
        value = loss("ppo")(logp, old_logp, advantages, one)
        logits.data -= 0.04 * grad(value, logits)[0]
    ratios = (logits.detach().log_softmax(-1)[:, None] - old_logp).exp()[:, 0]
    assert_close(ratios, entry.right(advantages, **settings), rtol=0, atol=1e-12)
    assert_close(ratios, f64(1.4, 0.8, 0.8), rtol=0, atol=0.02)
    further = entry.right(advantages, momentum=0.9, **settings)
    assert further[0] > ratios[0] + 0.02, "momentum carries it on"


def test_k1_as_a_loss():
    """Expected gradient 0, where k2 pulls along ∇KL(π_θ‖π_ref)."""
    logits, ref_logp = f64(0.5, -1.0, 0.2, 1.3), POLICY[1]

    def exact(x):
        logp = x.log_softmax(-1)
        return logp.exp() @ (logp - ref_logp)

    entry, pull = misreading("k1_as_a_loss"), tensor(slope(exact, logits))
    both = (entry.wrong, kl.k1, 0 * pull), (entry.right, kl.k2, pull)
    for typed, ours, expected in both:

        def sampled(x, estimator=ours):
            logp = x.log_softmax(-1)
            return logp.exp().detach() @ estimator(logp, ref_logp)

        of_entry = slope(lambda x, f=typed: f(x.log_softmax(-1), ref_logp), logits)
        for answer in (of_entry, slope(sampled, logits)):
            assert_close(tensor(answer), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("z", "a", "gamma"), RSPO)
def test_rspo_gradient_through_shift(z, a, gamma):
    """∂J/∂γ_t = J / (|o| γ_t): it has the sign of Â. The package's γ is a constant."""
    entry, of_gamma = misreading("rspo_gradient_through_shift"), {}
    for name, f in (("wrong", entry.wrong), ("right", entry.right), ("ours", rspo)):
        given = z.clone().requires_grad_(), gamma.clone().requires_grad_()
        value = f(given[0], a, given[1])
        assert value.item() == pytest.approx(entry.right(z, a, gamma).item())
        by_z, by_gamma = grad(value, given, allow_unused=True)
        assert_close(by_z, tensor(slope(entry.right, z, a, gamma)))
        of_gamma[name] = [0.0] * 3 if by_gamma is None else by_gamma.tolist()
    assert of_gamma["right"] == of_gamma["ours"] == [0.0] * 3
    expected = [value.item() / (3 * g) for g in gamma.tolist()]
    assert of_gamma["wrong"] == pytest.approx(expected)


def test_replay_freezes_router_weights():
    logits, experts = f64([2, 1, 0, -1]).requires_grad_(), tensor([[3, 1]])
    wrong, correct = both("replay_freezes_router_weights", logits, experts)
    assert torch.equal(wrong, correct) and not wrong.requires_grad
    p = correct[0, 0].item()
    assert p == pytest.approx(1 / (1 + math.e**2), abs=1e-6)
    # of two experts: p(1−p) on the one, minus that on the other
    expected = pytest.approx([0, -p * (1 - p), 0, p * (1 - p)], abs=1e-6)
    assert grad(correct[0, 0], logits)[0][0].tolist() == expected


def test_mean_gate_bounds_gradient():
    """z = 0.1 ± 0.01 with scores ±1: beyond the first bound, within the second."""
    scores, tau = f64(1, -1, 1, -1), 8.8
    z = 0.1 + 0.01 * scores
    gate = 1 / torch.cosh(tau * z / 2) ** 2
    middle = 1 / torch.cosh(tau * z.mean() / 2) ** 2
    wrong, correct = both("mean_gate_bounds_gradient", z, scores, tau)
    assert 5 * wrong < ((gate - middle) * scores).mean().abs() <= correct
    assert (gate.mean() - middle).abs() <= wrong  # the mean gate does keep to it
