"""Exercises of chapter 19: two λ, a critic that knows nothing, a bug."""

import torch

from course.kit.exercise import Exercise


def two_lambdas(reward, values, lam, lam_critic=1.0):
    """GAE with λ for the policy; Â + V with λ_critic for the critic."""
    for_policy, for_critic = _gae(reward, values, lam), _gae(reward, values, lam_critic)
    return torch.stack([for_policy, for_critic + values])


def _paid_everywhere(reward, values, lam, lam_critic=1.0):
    """The reward at each token instead of the last one."""
    paid = [torch.zeros_like(values), torch.zeros_like(values)]
    for found, decay in zip(paid, (lam, lam_critic)):
        A, after = 0.0, 0.0
        for t in reversed(range(len(values))):
            A = reward + after - values[t] + decay * A
            found[t], after = A, values[t]
    return torch.stack([paid[0], paid[1] + values])


def _gae(reward, values, lam, last=0.0):
    A, after, found = 0.0, last, torch.zeros_like(values)
    for t in reversed(range(len(values))):
        delta = (reward if t == len(values) - 1 else 0.0) + after - values[t]
        A = delta + lam * A
        found[t], after = A, values[t]
    return found


_VALUES = torch.tensor([0.2, 0.4, 0.5, 0.7, 0.9]).double()

TYPED = (
    Exercise(
        "19.two_lambdas",
        solution=two_lambdas,
        cases=(
            (1.0, _VALUES, 0.8),
            (0.0, _VALUES, 0.95, 0.5),
            (1.0, torch.tensor([0.5, 0.1]).double(), 0.5),
        ),
        mistakes={
            "The targets have a λ of their own. Yours are those of the advantages.": {
                "lam_critic)": "lam)"
            },
            "With λ_critic = 1 each target is the reward, as yours are. That is the "
            "usual value, but `lam_critic` may be another: compute Â + V with it.": {
                "values, lam_critic)": "values, 1.0)"
            },
            "Those are the critic's errors. A target is Â + V.": {" + values": ""},
            "The reward comes once, at the last token. You add it to each advantage.": {
                "[for_policy,": "[for_policy + reward,"
            },
            "The reward comes once, with the last token. You give it to every "
            "token.": _paid_everywhere,
            "The sum decays by λ. You add up all later errors undiminished.": (
                lambda reward, values, lam, lam_critic=1.0: two_lambdas(
                    reward, values, 1.0, 1.0
                )
            ),
            "After the last token there is no value: V is 0 there.": {
                "values, lam),": "values, lam, float(values[-1])),"
            },
            "You exchanged the two λ.": {
                "for_policy, for_critic =": "for_critic, for_policy ="
            },
            "The two rows are exchanged: advantages first.": {
                "for_policy, for_critic + values": "for_critic + values, for_policy"
            },
        },
    ),
)

EXERCISES = (
    Exercise(
        "19.1",
        solution="nothing",
        why="0.95 to the power of 999 is about 6e-23. The first token's advantage "
        "comes from the critic's guesses alone.",
        choices=("all", "half", "nothing"),
        mistakes={
            "That is λ = 1.": "all",
            "That happens after fourteen tokens: 0.95^14 is 0.49.": "half",
        },
    ),
    Exercise(
        "19.2",
        solution=20,
        why="1 − 1/(0.05 · l) is 0 where 0.05 · l = 1.",
        mistakes={
            "That is 1/α for α = 1.5, rounded up.": 1,
            "There λ is 0.5.": 40,
            "There λ is 0.33 already.": 30,
            "There λ is still 0, and the flat part goes on.": 15,
            "There λ is 0.05, and above zero for the first time.": 21,
            "There λ is 0.8. Look for the end of the flat part.": 100,
            "There λ is 0.95, GAE's usual value. Look for the place where it leaves "
            "zero.": 400,
            "That is α. The question asks for a length in tokens.": 0.05,
            "That is λ up to there. The question asks for the length.": 0,
            "The line of α = 0.05: where does it leave the axis?": 2,
        },
    ),
    Exercise(
        "19.3",
        solution=0.0,
        why="With V = 0 everywhere the errors R − V vary as much as the returns do.",
        mistakes={
            "That is a critic that knows every return.": 1.0,
            "It is 1 − Var(R − V)/Var(R), and V is 0.": 0.5,
            "A critic can be worse than knowing nothing, but this one is not.": -1.0,
        },
    ),
    Exercise(
        "19.4",
        lines=9,
        solution="5c",
        why="Whitened advantages have mean 0 and another scale, so targets made from "
        "them are no returns. Make the targets first, from the raw advantages.",
        mistakes={
            "The policy's λ may well be below 1. That is what it is for.": "3a",
            "One answer per prompt is right here: the critic is the baseline.": "1b",
            "Whitening is fine for the policy. Who else uses its result?": "4c",
            "More critic steps than policy steps are what SAO does.": "8d",
        },
    ),
)
