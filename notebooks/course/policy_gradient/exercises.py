"""Exercises of chapter 01: score function, importance weights, baselines, a bug."""

import torch
from torch import Tensor

from course.kit.exercise import Exercise


def score_gradient(probs: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    """Mean over samples of R · ∇log π(a), with ∇log π(a) = onehot(a) − π for logits."""
    chosen = torch.nn.functional.one_hot(actions, len(probs)).to(probs.dtype)
    return (rewards[:, None] * (chosen - probs)).mean(0)


def response_weight(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Π_t π_θ / π_old over the response's own tokens: the exp of a masked sum."""
    return ((logp - old_logp) * mask).sum(-1).exp()


def best_baseline(probs: Tensor, rewards: Tensor, scores: Tensor) -> Tensor:
    """E[R ‖ψ‖²] / E[‖ψ‖²]: the mean reward, weighted by how long the scores are."""
    weight = probs * (scores**2).sum(-1)
    return (weight * rewards).sum() / weight.sum()


_PROBS = torch.tensor([0.5, 0.3, 0.2])
_ACTIONS = torch.tensor([0, 2, 2, 1])
_PAID = torch.tensor([1.0, 0.0, 2.0, -1.0])
_LOGP = torch.tensor([[-0.5, -1.0, -3.0], [-0.2, -7.0, -9.0]])
_OLD = torch.tensor([[-0.9, -0.4, -2.5], [-0.7, -9.0, -9.0]])
_MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
_SCORES = torch.eye(3) - _PROBS  # those of a softmax: their mean is 0, as it must be


def _onehot(actions: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(actions, size).float()


def _score_by_counts(probs, actions, rewards):
    """Σ over the samples of each arm, then the mean reward times −π."""
    sums = torch.zeros_like(probs).index_add_(0, actions, rewards)
    return sums / len(actions) - rewards.mean() * probs


def _weight_by_product(logp, old_logp, mask):
    """The product of the ratios, with 1 on padding."""
    ratio = (logp - old_logp).exp()
    return torch.where(mask.bool(), ratio, torch.ones_like(ratio)).prod(-1)


def _baseline_by_parabola(probs, rewards, scores):
    """The lowest point of the parabola through three baselines."""
    length = scores.norm(dim=-1)
    low, middle, high = (
        (probs * (length * (rewards - b)) ** 2).sum() for b in (-1.0, 0.0, 1.0)
    )
    return (low - high) / (2 * (low + high - 2 * middle))


EXERCISES = (
    Exercise(
        "1.1",
        minutes=5,
        solution="guess",
        choices=("careful", "guess", "ramble"),
        mistakes={
            "The update does not know that 'careful' is better: nobody rewarded it. "
            "What is taken from 'ramble' goes where the policy already is.": "careful",
            "Its advantage is negative, so its own logit is pushed down.": "ramble",
            "They do not share evenly: each gives way, or gains, by its own π.": "both",
        },
    ),
    Exercise(
        "1.2",
        minutes=10,
        solution=score_gradient,
        cases=((_PROBS, _ACTIONS, _PAID), (_PROBS, _ACTIONS[:1], _PAID[:1])),
        also=(_score_by_counts,),
        mistakes={
            "You left out −π: pushing one logit up must pull the others down.": (
                lambda probs, actions, rewards: (
                    rewards[:, None] * _onehot(actions, len(probs))
                ).mean(0)
            ),
            "That is the sum over samples. An expectation is estimated by the mean.": (
                lambda *case: score_gradient(*case) * len(case[1])
            ),
            "You weight by π(a) again. Sampling did that already: ∇log π, not ∇π.": (
                lambda probs, actions, rewards: score_gradient(
                    probs, actions, rewards * probs[actions]
                )
            ),
            "No baseline is asked for. The mean of all samples contains each one's own "
            "reward, and shrinks the estimate.": (
                lambda probs, actions, rewards: score_gradient(
                    probs, actions, rewards - rewards.mean()
                )
            ),
            "The sign is that of a loss. The question asks for the ascent direction.": (
                lambda *case: -score_gradient(*case)
            ),
        },
    ),
    Exercise(
        "1.3",
        minutes=5,
        solution=70,
        choices=(8, 70, 230, 1700),
        mistakes={
            "That is the curve for 30 %.": 8,
            "At 230 tokens a tenth is left. Half is higher up on the same curve.": 230,
            "That is the curve for 2 %.": 1700,
        },
    ),
    Exercise(
        "1.4",
        minutes=10,
        solution=response_weight,
        cases=((_LOGP, _OLD, _MASK),),
        also=(_weight_by_product,),
        mistakes={
            "That is the mean of the token ratios. Probabilities multiply.": (
                lambda logp, old, mask: (
                    ((logp - old).exp() * mask).sum(-1) / mask.sum(-1)
                )
            ),
            "That is the geometric mean (GSPO, chapter 05). It does not re-weigh.": (
                lambda logp, old, mask: (
                    ((logp - old) * mask).sum(-1) / mask.sum(-1)
                ).exp()
            ),
            "You multiply padding in: mask the log-ratios before the sum.": (
                lambda logp, old, mask: (logp - old).sum(-1).exp()
            ),
            "A product of masked ratios is 0 as soon as a row has padding: there, each "
            "factor must be 1.": (
                lambda logp, old, mask: ((logp - old).exp() * mask).prod(-1)
            ),
            "Upside down: the data came from π_old, so π_old is below.": (
                lambda logp, old, mask: ((old - logp) * mask).sum(-1).exp()
            ),
            "That is the log of the weight; take exp.": (
                lambda logp, old, mask: ((logp - old) * mask).sum(-1)
            ),
            "Do not add ratios: add log-ratios, then take exp.": (
                lambda logp, old, mask: ((logp - old).exp() * mask).sum(-1)
            ),
        },
    ),
    Exercise(
        "1.5",
        minutes=15,
        solution=best_baseline,
        cases=((_PROBS, _PAID[:3], _SCORES),),
        also=(_baseline_by_parabola,),
        mistakes={
            "That is the mean reward: right only if all scores are equally long.": (
                lambda probs, rewards, scores: (probs * rewards).sum()
            ),
            "You forgot the probabilities: both expectations are under π.": (
                lambda probs, rewards, scores: (
                    (rewards * (scores**2).sum(-1)).sum() / (scores**2).sum()
                )
            ),
            "Divide by E[‖ψ‖²], or the baseline is not in units of reward.": (
                lambda probs, rewards, scores: (
                    probs * rewards * (scores**2).sum(-1)
                ).sum()
            ),
            "Weight by the squared length ‖ψ‖², not by the length.": (
                lambda probs, rewards, scores: (
                    (probs * rewards * scores.norm(dim=-1)).sum()
                    / (probs * scores.norm(dim=-1)).sum()
                )
            ),
        },
    ),
    Exercise(
        "1.6",
        minutes=10,
        solution=3,
        why="The gradients must be cleared in every step, so `zero_grad` belongs "
        "inside the loop.",
        mistakes={
            "Line 1 is right: the warm start must not be changed by the run.": 1,
            "Line 2 is right: one optimiser for the whole run, or it forgets its "
            "moments.": 2,
            "Line 5 is right: a fresh rollout from the current policy, and another "
            "seed in every step.": 5,
            "Line 6 is right: the log-probs of the current policy carry the "
            "gradient.": 6,
            "Line 7 is right: on fresh data the ratio is 1, and A log π is enough.": 7,
            "Line 8 is right: `backward` fills the gradients. But what do they hold "
            "before it?": 8,
            "Line 9 is right: it limits the norm of what is there. Ask why so much is "
            "there.": 9,
            "Line 10 is right: AdamW descends, and the loss has its minus sign.": 10,
            "Line 4 is right: 24 rollouts, one update each.": 4,
        },
    ),
)
