"""What a sampler that is not π_old costs a token, by hand."""

import pytest
import torch
from torch import tensor
from torch.nn.functional import pad
from torch.testing import assert_close

from refimpl import UserError
from refimpl.corrections import RULES, WEIGHING, check, factor
from tests.losses.batches import EXACT, NAN, mask_of, random_batch
from tests.worlds import prepared

pytestmark = pytest.mark.usefixtures("float64")

W = tensor([[4.0, 0.5, 1.0, 7.0], [2.0, 1.0, 1.0, 0.25]]).double()
MASK = mask_of([3, 4])  # 7 is padding
BAD, HALF = tensor([1.0, -1.0]), tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]])
CUBE, FOURTH = 2 ** (1 / 3), 0.5**0.25
"""Products of w are 2 and ½, its geometric means these."""
BY_HAND = [
    ({"token_truncate": 2}, [[2, 0.5, 1], [2, 1, 1, 0.25]]),
    ({"token_truncate": (0.6, 2)}, [[2, 0.6, 1], [2, 1, 1, 0.6]]),
    ({"token_mask": 2}, [[0, 0.5, 1], [2, 1, 1, 0.25]]),  # a bound is inside
    ({"token_mask": [0.5, 2]}, [[0, 0.5, 1], [2, 1, 1, 0]]),  # as JSON has it
    ({"token_mask": (0.5, 2)}, [[0, 0.5, 1], [2, 1, 1, 0]]),
    ({"token_reject": (0.5, 2)}, [[0, 1, 1], [1, 1, 1, 0]]),
    ({"sequence_truncate": 1.5}, [[1.5] * 3, [0.5] * 4]),
    ({"sequence_mask": (0.6, 3)}, [[2] * 3, [0] * 4]),
    ({"sequence_mask": 1}, [[0] * 3, [0.5] * 4]),
    ({"sequence_reject": (0.6, 3)}, [[1] * 3, [0] * 4]),
    ({"mean_truncate": 1.2}, [[1.2] * 3, [FOURTH] * 4]),
    ({"mean_mask": (0.9, 1.3)}, [[CUBE] * 3, [0] * 4]),
    ({"mean_reject": (0.8, 1.2)}, [[0] * 3, [1] * 4]),
    # seq-mask-tis: an answer is dropped by its geometric mean, a token keeps its own w
    ({"mean_reject": (0.8, 1.2), "token_truncate": 1e9}, [[0] * 3, [2, 1, 1, 0.25]]),
    # k3 = w − 1 − log w is 1.61, 0.19, 0 and 0.31, 0, 0, 0.64
    ({"token_k3": 0.31}, [[0, 1, 1], [1, 1, 1, 0]]),
    ({"sequence_k3": 1}, [[0] * 3, [1] * 4]),
    ({"mean_k3": 0.6}, [[0] * 3, [1] * 4]),
    ({"mean_k3": 0.61}, [[1] * 3, [1] * 4]),
    ({"max_reject": 3.9}, [[0] * 3, [1] * 4]),
    ({"max_reject": (0.4, 4.1)}, [[1] * 3, [0] * 4]),
    ({"max_k3": 0.65}, [[0] * 3, [1] * 4]),
    ({"max_k3": 0.63}, [[0] * 3, [0] * 4]),
    # mean log μ/π is −0.23 and 0.173; the second response is bad
    ({"opsm": 0.17}, [[1] * 3, [0] * 4]),
    ({"opsm": 0.18}, [[1] * 3, [1] * 4]),
    ({"opsm": 0.17, "token_mask": 2.01}, [[0, 0.5, 1], [0] * 4]),
    ({}, [[1] * 3, [1] * 4]),
]


def factor_of(rules, w=W, mask=MASK, advantages=BAD, **given):
    """Where μ is 1, which no rule here looks at, and π_old is w, without rounding."""
    return factor(check(rules), w.log(), 0 * w, mask, advantages, **given)


@pytest.mark.parametrize(("rules", "wanted"), BY_HAND)
def test_by_hand(rules, wanted):
    found = factor_of(rules) * MASK
    padded = [row + [0] * (4 - len(row)) for row in wanted]
    assert_close(found, tensor(padded, dtype=torch.float64), **EXACT)


def test_opsm_drops_bad_tokens_by_how_far_the_learner_is_from_the_sampler():
    found = factor_of({"opsm": 0.17}, advantages=HALF) * MASK
    assert found.tolist() == [[1, 1, 1, 0], [1, 0, 1, 0]]
    assert factor_of({"opsm": 0.17}, advantages=0 * BAD).bool().all()  # 0 is not bad
    back = tensor([[0.0] * 4] * 2)  # π_θ is at μ again, whatever π_old is
    assert factor_of({"opsm": 0.17}, now=back).bool().all()
    away = factor_of({"opsm": 0.17}, advantages=-BAD, now=back - 0.18)
    assert away.tolist() == [[0] * 4, [1] * 4]


def test_kpop_bounds_a_tokens_binary_kl_both_ways():
    """KL(½‖¼) = ½ log 2 + ½ log ⅔ = 0.144, the other way 0.131; of 0.001 and 0.01, w =
    10, the larger is 0.014; of a token that is certain, 0, in float32 too."""
    mu, pi = tensor([[0.25, 0.5, 0.001, 1.0]]), tensor([[0.5, 0.25, 0.01, 1.0]])
    for dtype in (torch.float64, torch.float32):
        given = pi.log().to(dtype), mu.log().to(dtype), torch.ones(1, 4), BAD[:1]
        for bound, wanted in (
            (0.145, [2.0, 0.5, 10.0, 1.0]),
            (0.14, [0.0, 0.0, 10.0, 1.0]),
            (0.01, [0.0, 0.0, 0.0, 1.0]),
        ):
            found = factor({"kpop": bound}, *given)
            assert_close(found, tensor([wanted], dtype=dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("token_kl: 0.14", [1, 0]),
        ("token_kl: 0.13", [0, 0]),
        ("mean_kl: 0.1374", [1, 1]),
        ("mean_kl: 0.1373", [0, 0]),
        ("sequence_kl: 0.2747", [1, 1]),
        ("sequence_kl: 0.2746", [0, 0]),
    ],
)
def test_kl_bounds_that_of_the_sampler_from_the_policy(rule, wanted):
    """KL(¼‖½) = ¼ log ½ + ¾ log 3/2 = 0.13081 and KL(½‖¼) = ½ log 2 + ½ log ⅔ =
    0.14384; their sum is 0.27465. The other way round it would be the same sum."""
    mu, pi = tensor([[0.25, 0.5]]).log(), tensor([[0.5, 0.25]]).log()
    name, bound = rule.split(": ")
    found = factor({name: float(bound)}, pi, mu, torch.ones(1, 2), None)
    assert found.tolist() == [wanted]


DTYPES = torch.float64, torch.int64, torch.bool
BOUNDS = {"opsm": 0.02, "kpop": 0.02, "token_k3": 0.05, "mean_k3": 0.1}
BOUNDS |= {"token_kl": 0.05, "mean_kl": 0.1, "sequence_kl": 0.2}
BOUNDS |= {"sequence_k3": 0.2, "max_k3": 0.2, "max_reject": 1.5}


@pytest.mark.parametrize("name", RULES)
def test_padding_holes_cuts_and_the_masks_type_change_nothing(name):
    logp, mu, paid, mask = random_batch([6, 2, 4, 1], seed=1)
    paid, rules = -paid[:, 0], {name: BOUNDS.get(name, 1.0)}
    whole = (factor(rules, logp, mu, mask, paid) * mask)[:, :6]
    assert not whole.requires_grad and len(whole[mask.bool()].unique()) > 1
    rubbish = torch.where(mask.bool(), 0.0, NAN)
    pairs = [(logp + rubbish, mu - rubbish, mask.to(dtype), paid) for dtype in DTYPES]
    for given in pairs:
        assert_close(factor(rules, *given) * mask, whole, **EXACT)

    def holed(x, filler=0.0):
        return pad(x.detach(), (0, 3), value=filler)[:, [1, 4, 6, 0, 7, 3, 5, 8, 2]]

    found = factor(rules, holed(logp, -9.0), holed(mu, -1.0), holed(mask), paid)
    assert_close(found * holed(mask), holed(whole), **EXACT)
    for row in range(4):
        part = (x[row : row + 1] for x in (logp, mu, mask, paid))
        assert_close(factor(rules, *part) * mask[row], whole[row : row + 1], **EXACT)


def test_a_ratio_is_multiplied_once():
    with pytest.raises(UserError, match="kpop and token_mask"):
        prepared(corrections={"kpop": 0.1, "token_mask": 2.0})
    for name in sorted(WEIGHING):
        given = {"corrections": {name: 2.0}, "trust_sampler": True}
        for method, settings in (("grpo", {}), ("reinforce", {"correct": True})):
            with pytest.raises(UserError, match=f"{name} multiplies by π_θ/μ"):
                prepared(method, hyperparameters=settings, **given)
        prepared("reinforce", **given)
