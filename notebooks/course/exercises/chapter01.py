"""Exercises of chapter 01: score function, baselines, importance weights."""

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter01 as solutions

_PROBS = torch.tensor([0.5, 0.3, 0.2])
_ACTIONS = torch.tensor([0, 2, 2, 1])
_PAID = torch.tensor([1.0, 0.0, 2.0, -1.0])
_LOGITS = torch.tensor([2.0, 0.0, -1.0])
_REWARDS = torch.tensor([[1.0, 0.0, 0.0, 0.5], [1.0, 1.0, 0.0, 1.0]])
_LOGP = torch.tensor([[-0.5, -1.0, -3.0], [-0.2, -7.0, -9.0]])
_OLD = torch.tensor([[-0.9, -0.4, -2.5], [-0.7, -9.0, -9.0]])
_MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
_SCORES = torch.eye(3) - _PROBS  # those of a softmax: their mean is 0, as it must be


def _onehot(actions: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(actions, size).float()


def _pushes_only_itself(logits, token, advantage):
    push = torch.zeros_like(logits)
    push[token] = (1 - logits.softmax(-1)[token]) * advantage
    return push


def _pushes_evenly(logits, token, advantage):
    push = torch.full_like(logits, -1 / len(logits))
    push[token] += 1
    return push * advantage


def _raw_logits(logits, token, advantage):
    push = -logits.clone()
    push[token] += 1
    return push * advantage


EXERCISES = (
    Exercise(
        "1.1",
        "The score-function estimator",
        difficulty=2,
        minutes=10,
        solution=solutions.score_gradient,
        cases=((_PROBS, _ACTIONS, _PAID), (_PROBS, _ACTIONS[:1], _PAID[:1])),
        mistakes={
            "You left out −π: pushing one logit up must pull the others down.": (
                lambda probs, actions, rewards: (
                    rewards[:, None] * _onehot(actions, len(probs))
                ).mean(0)
            ),
            "That is the sum over samples. An expectation is estimated by the mean.": (
                lambda probs, actions, rewards: (
                    rewards[:, None] * (_onehot(actions, len(probs)) - probs)
                ).sum(0)
            ),
            "You weigh by π(a) once more. Sampling did that already: ∇log π, not ∇π.": (
                lambda probs, actions, rewards: (
                    (rewards * probs[actions])[:, None]
                    * (_onehot(actions, len(probs)) - probs)
                ).mean(0)
            ),
            "The sign is that of a loss. The question asks for the ascent direction.": (
                lambda probs, actions, rewards: (
                    -(rewards[:, None] * (_onehot(actions, len(probs)) - probs)).mean(0)
                )
            ),
        },
    ),
    Exercise(
        "1.2",
        "The push on the logits",
        difficulty=2,
        minutes=5,
        solution=solutions.logit_push,
        cases=((_LOGITS, 0, 1.0), (_LOGITS, 2, -2.0)),
        mistakes={
            "Only the sampled token moves in your answer; the others must give way.": (
                _pushes_only_itself
            ),
            "You pull all tokens down evenly. Each gives way by its own π(v).": (
                _pushes_evenly
            ),
            "You subtract the logits. Subtract the probabilities: softmax first.": (
                _raw_logits
            ),
            "The sign is that of a loss. A > 0 must push the sampled token up.": (
                lambda logits, token, advantage: (
                    -solutions.logit_push(logits, token, advantage)
                )
            ),
        },
    ),
    Exercise(
        "1.3",
        "Leave-one-out",
        difficulty=2,
        minutes=5,
        solution=solutions.leave_one_out,
        cases=((_REWARDS,), (torch.tensor([[1.0, 0.0], [0.0, 0.5]]),)),
        mistakes={
            "Your baseline contains R_i itself: that is the group mean.": (
                lambda rewards: rewards - rewards.mean(-1, keepdim=True)
            ),
            "You left R_i out of the sum but divide by G; only G − 1 are left.": (
                lambda rewards: (
                    rewards
                    - (rewards.sum(-1, keepdim=True) - rewards) / rewards.shape[1]
                )
            ),
            "You divide by the std as well. That is GRPO, chapter 03.": (
                lambda rewards: (
                    (rewards - rewards.mean(-1, keepdim=True))
                    / rewards.std(-1, keepdim=True)
                )
            ),
            "You compare with all prompts. Keep the rows apart with dim=-1.": (
                lambda rewards: (
                    rewards - (rewards.sum() - rewards) / (rewards.numel() - 1)
                )
            ),
            "That is the baseline. The advantage is R minus it.": (
                lambda rewards: (
                    (rewards.sum(-1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
                )
            ),
        },
    ),
    Exercise(
        "1.4",
        "Effective sample size",
        difficulty=1,
        minutes=5,
        solution=solutions.effective_samples,
        cases=((torch.ones(4),), (torch.tensor([4.0, 1.0, 1.0, 0.0]),)),
        mistakes={
            "Upside down: equal weights should give N.": (
                lambda weights: (weights**2).sum() / weights.sum() ** 2
            ),
            "That is the share of N. The question asks for the number.": (
                lambda weights: weights.sum() ** 2 / (weights**2).sum() / len(weights)
            ),
            "You count the weights that are not 0, however small they are.": (
                lambda weights: (weights > 0).sum()
            ),
            "Square the sum, not each weight, in the numerator.": (
                lambda weights: weights.sum() / (weights**2).sum()
            ),
        },
    ),
    Exercise(
        "1.5",
        "The importance weight of a response",
        difficulty=3,
        minutes=10,
        solution=solutions.response_weight,
        cases=((_LOGP, _OLD, _MASK),),
        mistakes={
            "That is the mean of the token ratios. Probabilities multiply.": (
                lambda logp, old, mask: (
                    ((logp - old).exp() * mask).sum(-1) / mask.sum(-1)
                )
            ),
            "That is the geometric mean (GSPO, chapter 05). It does not reweigh.": (
                lambda logp, old, mask: (
                    ((logp - old) * mask).sum(-1) / mask.sum(-1)
                ).exp()
            ),
            "You multiply padding in: mask the log-ratios before the sum.": (
                lambda logp, old, mask: (logp - old).sum(-1).exp()
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
        "1.6",
        "The baseline with the least noise",
        difficulty=4,
        minutes=15,
        solution=solutions.best_baseline,
        cases=((_PROBS, _PAID[:3], _SCORES),),
        mistakes={
            "That is the mean reward: right only if all gradients are equally long.": (
                lambda probs, rewards, scores: (probs * rewards).sum()
            ),
            "You forgot the probabilities: both expectations are under π.": (
                lambda probs, rewards, scores: (
                    (rewards * (scores**2).sum(-1)).sum() / (scores**2).sum()
                )
            ),
            "Divide by E[‖g‖²], or the baseline is not in units of reward.": (
                lambda probs, rewards, scores: (
                    probs * rewards * (scores**2).sum(-1)
                ).sum()
            ),
            "Weigh by the squared length ‖g‖², not by the length.": (
                lambda probs, rewards, scores: (
                    (probs * rewards * scores.norm(dim=-1)).sum()
                    / (probs * scores.norm(dim=-1)).sum()
                )
            ),
        },
    ),
)
