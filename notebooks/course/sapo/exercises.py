"""Exercises of chapter 10: SAPO's loss, a gate to order, another soft gate."""

import math
from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual
from refimpl.algorithms import ALGORITHMS, Objective, Tokens


def sapo_loss(logp, old_logp, advantages, mask, tau_pos=1.0, tau_neg=1.05):
    """-(1/G) Σ_i (1/|o_i|) Σ_t (4/τ) σ(τ(r − 1)) Â_i."""
    A = advantages[:, None].expand_as(logp)
    r = (logp - old_logp).exp()
    tau = torch.full_like(r, tau_neg).masked_fill(A > 0, tau_pos)
    f = 4 / tau * torch.sigmoid(tau * (r - 1))
    w = mask / (len(mask) * mask.sum(1, keepdim=True))
    return -(w * f * A).sum()


def _on_the_sequence(logp, old_logp, advantages, mask, tau_pos=1.0, tau_neg=1.05):
    """One ratio for the whole answer."""
    z = (logp - old_logp) * mask
    mean = (z.sum(1) / mask.sum(1))[:, None].expand_as(z)
    return sapo_loss(mean, 0 * mean, advantages, mask, tau_pos, tau_neg)


def _as_articles(alpha, whole, divided):
    """σ(α(r − 1)), with a slope α of its own, perhaps over τ, or with one ratio."""

    def loss(logp, old_logp, advantages, mask, tau_pos=1.0, tau_neg=1.05):
        z = (logp - old_logp) * mask
        if whole:
            z = (z.sum(1) / mask.sum(1))[:, None].expand_as(z)
        A = advantages[:, None].expand_as(z)
        tau = torch.full_like(z, tau_neg).masked_fill(A > 0, tau_pos)
        f = torch.sigmoid(alpha * (z.exp() - 1)) / (tau if divided else 1)
        return -(mask / (len(mask) * mask.sum(1, keepdim=True)) * f * A).sum()

    return loss


TYPED = (
    Exercise(
        "10.sapo_loss",
        solution=sapo_loss,
        cases=((*batch(), 2.0, 5.0), (*batch(), 8.8, 8.8), batch()),
        gradient=True,
        mistakes={
            **usual(sapo_loss),
            "The factor 4/τ is missing. Without it the slope of f at r = 1 is τ/4, so "
            "τ changes the size of every step; with it the slope is 1.": {
                "4 / tau * ": ""
            },
            "That is what articles print: σ(τ(r − 1)), and advantages divided by τ. "
            "The gate has the factor 4/τ. Yours has 1/τ, so even on policy every step "
            "is a quarter of what it should be.": {"4 / tau": "1 / tau"},
            "That is what some articles print: a sigmoid with a slope α of its own. In "
            "SAPO τ is that slope, and the factor is 4/τ, so the slope of f at r = 1 "
            "is 1.": [
                _as_articles(alpha, whole, divided)
                for alpha in (1, 5, 10)
                for whole in (False, True)
                for divided in (False, True)
            ],
            "You have the factor 4/τ, and divide the advantages by τ as well. τ shapes "
            "the gate alone.": {"f * A": "f * A / tau"},
            "You multiply by 4 but do not divide by τ: the slope of f at r = 1 is τ.": {
                "4 / tau": "4"
            },
            "You use τ_pos for every token. Where Â is not positive, it is τ_neg.": {
                "full_like(r, tau_neg)": "full_like(r, tau_pos)"
            },
            "τ_pos belongs to Â > 0, and τ_neg to the others.": {"A > 0": "A <= 0"},
            "τ is chosen by the sign of Â; you choose it by the side of r.": {
                "A > 0": "r > 1"
            },
            "Where is Â? It says whether a token is to rise or fall.": {"f * A": "f"},
            "The gate is centred at r = 1: σ(τ(r − 1)).": {"(r - 1)": "r"},
            "τ multiplies the whole of r − 1, not r alone: σ(τ(r − 1)).": {
                "tau * (r - 1)": "tau * r - 1"
            },
            "That is centred, but on log r = 0. SAPO's f is a function of r − 1.": {
                "(r - 1)": "r.log()"
            },
            "r is counted twice: it is inside f, and not a factor as well.": {
                "f * A": "f * r * A"
            },
            "The gradient is right, but f(1) is 2/τ and not 0: write the sigmoid as it "
            "stands, 4/τ times σ(τ(r − 1)).": {
                "4 / tau * torch.sigmoid(tau * (r - 1))": (
                    "2 / tau * torch.tanh(tau * (r - 1) / 2)"
                )
            },
            "That has the gate f'(r), which belongs to the gradient. Use f itself.": {
                "4 / tau * torch.sigmoid(tau * (r - 1))": (
                    "1 / torch.cosh(tau * (r - 1) / 2) ** 2"
                )
            },
            "That is the push. Its gate and its ratio come from the slope of f; the "
            "objective is f itself.": {
                "4 / tau * torch.sigmoid(tau * (r - 1))": (
                    "r / torch.cosh(tau * (r - 1) / 2) ** 2"
                )
            },
            "A gate as a constant times r Â gives the right gradient and another "
            "value; SAPO needs no stop-gradient.": {
                "4 / tau * torch.sigmoid(tau * (r - 1))": (
                    "(1 / torch.cosh(tau * (r - 1) / 2) ** 2).detach() * r"
                )
            },
            "One ratio for the answer is GSPO's; here every token has its own.": (
                _on_the_sequence
            ),
        },
    ),
)


def tau_for(width: float, left: float) -> float:
    """sech²(τ·width/2) = left at τ = 2 arcosh(1/√left) / width."""
    return 2 * math.acosh(1 / math.sqrt(left)) / width


def soft_objective(ratios: torch.Tensor, tau: float) -> torch.Tensor:
    """The integral of 1/(1 + τ²(r − 1)²) from 1 to r."""
    return torch.atan(tau * (ratios - 1)) / tau


def _without_exp(t: Tokens) -> Objective:
    """SAPO's objective at τ = 8.8 with log r where r belongs."""
    return Objective(4 / 8.8 * torch.sigmoid(8.8 * (t.z - 1)) * t.advantages)


BROKEN = replace(ALGORITHMS["sapo"], objective=_without_exp)
"""The run of exercise 10.6, for `train`."""

_R = torch.tensor([1.5, 0.7, 1.0, 2.5]).double()

EXERCISES = (
    Exercise(
        "10.1",
        solution="equal",
        why="Before the first update every ratio is 1. There the slope of f is "
        "(4/τ) · τ σ(0)(1 − σ(0)) = 1, for every τ.",
        choices=("none", "smaller", "equal"),
        mistakes={
            "Narrow, but not closed: which slope has f at r = 1?": "none",
            "A factor 4/τ stands in front, and the chain rule brings a τ. What is "
            "left of both at r = 1?": "smaller",
        },
    ),
    Exercise(
        "10.2",
        solution=4,
        why="The gate depends only on |r − 1| and τ, so all four tokens have the same "
        "gate.",
        choices=(0, 1, 2, 4),
        mistakes={
            "At a distance of 0.4 the gate is far beyond its half-width, 0.2.": 0,
            "Is there a distance at which SAPO treats one of them alone?": 1,
            "GRPO's clip stops two. Does SAPO's gate depend on the sign of Â?": 2,
        },
    ),
    Exercise(
        "10.3",
        solution=2,
        why="The lower right panel: c = g r has its top near r = 2.",
        choices=(1, 1.5, 2, 3),
        mistakes={
            "There the gate is widest open. The push goes with c = g r.": 1,
            "Its coefficient is still rising there.": 1.5,
            "That is where GRPO's unclipped line ends highest; SAPO's has fallen.": 3,
        },
    ),
    Exercise(
        "10.4",
        solution=tau_for,
        cases=((0.2, 0.1), (0.5, 0.9), (0.2, 0.5), (1.763, 0.5)),
        mistakes={
            "That keeps one half for any `left`; it belongs under the arcosh.": {
                "1 / math.sqrt(left)": "math.sqrt(2)"
            },
            "1.763 is 2 arcosh √2, which keeps one half for any `left`. What replaces "
            "√2 for another share?": (lambda width, left: 1.763 / width),
            "You left out the ½ inside: the gate is sech²(τ(r−1)/2).": {
                "2 * math": "math"
            },
            "The ½ stands inside the gate. Solved for τ, it becomes a factor of 2.": {
                "2 * math": "0.5 * math"
            },
            "That is where sech is `left`; the gate is its square.": {
                "math.sqrt(left)": "left"
            },
            "`left` is what the gate keeps; you solved for what it removes.": {
                "sqrt(left)": "sqrt(1 - left)"
            },
            "Divide by the width: a narrower gate has a larger τ.": {
                "/ width": "* width"
            },
        },
    ),
    Exercise(
        "10.5",
        solution=soft_objective,
        cases=((_R, 2.0), (_R, 8.8), (_R, 1.0)),
        mistakes={
            "That is the gate. The objective is the function that has it as its "
            "slope.": lambda r, tau: 1 / (1 + (tau * (r - 1)) ** 2),
            "Its slope at r = 1 is τ instead of 1: the chain rule brings a τ.": {
                " / tau": ""
            },
            "You divided by τ once too often, or by its square.": {"/ tau": "/ tau**2"},
            "You multiply by τ. The chain rule brings one τ already: divide by it.": {
                " / tau": " * tau"
            },
            "You forgot the − 1: the gate is a function of r − 1, and f(1) is 0.": {
                "(ratios - 1)": "ratios"
            },
            "Where is τ? That is right at τ = 1 alone.": {
                "tau * (ratios - 1)) / tau": "ratios - 1)"
            },
            "τ belongs inside as well: atan(τ(r − 1)).": {
                "tau * (ratios - 1)) / tau": "ratios - 1) / tau"
            },
            "The slope of tanh is sech², which is SAPO's own gate. Which function has "
            "the slope 1/(1 + x²)?": {"atan": "tanh"},
            "The slope of tanh is SAPO's own gate, and the chain rule brings a τ as "
            "well.": lambda r, tau: torch.tanh(tau * (r - 1)),
            "That is SAPO's objective. Its tails are shorter: which function has the "
            "slope 1/(1 + x²)?": (
                lambda r, tau: 4 / tau * torch.sigmoid(tau * (r - 1))
            ),
            "r is no factor of f. It enters the gradient through ∇r = r ∇log π.": {
                "torch.atan": "ratios * torch.atan"
            },
            "The gate is a function of r − 1, not of log r.": {
                "(ratios - 1)": "ratios.log()"
            },
            "The slope is right, but f(1) should be 0: choose the constant so.": [
                lambda r, tau: (math.pi / 2 + torch.atan(tau * (r - 1))) / tau,
                lambda r, tau: (math.atan(tau) + torch.atan(tau * (r - 1))) / tau,
            ],
            "The slope of log(1 + x²) is 2x/(1 + x²). Which has 1/(1 + x²)?": [
                lambda r, tau: (1 + (tau * (r - 1)) ** 2).log() / tau,
                lambda r, tau: (1 + (tau * (r - 1)) ** 2).log(),
                lambda r, tau: (1 + (tau * (r - 1)) ** 2).log() / (2 * tau**2),
                lambda r, tau: (1 + (tau * (r - 1)) ** 2).log() / tau**2,
                lambda r, tau: (1 + (tau * (r - 1)) ** 2).log() / (2 * tau),
            ],
        },
    ),
    Exercise(
        "10.6",
        solution="7b",
        why="The gate is centred at r = 1, and z − 1 is not r − 1: exp is missing. At "
        "z = 0 it is sech²(4.4), which is about 0.0006.",
        lines=10,
        mistakes={
            "That is the line, but for another reason: 4/8.8 belongs there. It makes "
            "the slope of f at r = 1 equal to 1.": "7a",
            "That is the line, but for another reason: one τ for both signs is "
            "allowed, and no gradient becomes small from it.": "7c",
            "That is the line, but for another reason: it has no weight, and needs "
            "none. Line 8 has the weight.": "7d",
            "Line 6 is right: z is the log-ratio. Which line uses it as if it were a "
            "ratio?": "6b",
            "Line 8 is right: each answer is divided by its own length once, and all "
            "by their number.": "8d",
            "Line 9 is right: minus the weighted objective.": "9d",
            "Line 10 is right: a norm below 1 is not clipped.": "10d",
            "Line 3 is right: these are GRPO's advantages, group by group.": "3a",
        },
    ),
    Exercise(
        "10.8",
        solution="down",
        why="What the rare answer loses goes mostly to the likely ones, which makes "
        "the policy surer.",
        choices=("down", "up", "not at all"),
        mistakes={
            "Only if its probability went to other rare answers. "
            "It goes mostly to the likely ones.": "up",
            "The probabilities change, and with them the entropy. To which "
            "answers does the lost probability go?": "not at all",
        },
    ),
    Exercise(
        "10.9",
        solution="below 1",
        why="An importance weight has the mean 1. The root that s "
        "takes pulls its mean below that.",
        choices=("below 1", "1", "above 1"),
        mistakes={
            "That is so for an importance weight, the product of "
            "the ratios. But s is a root of it.": "1",
            "A root pulls large values down more than it lifts small ones. So the "
            "mean of s falls, from the product's 1.": "above 1",
        },
    ),
    Exercise(
        "10.10",
        solution="anywhere",
        why="The clip removes the incentive to move further. Other tokens and the "
        "optimiser's momentum carry a token on.",
        choices=("within 0.8 and 1.2", "below 1.2", "anywhere"),
        mistakes={
            "The clip bounds the objective, not the ratio. A token without a "
            "gradient of its own still moves when others do.": "within 0.8 and 1.2",
            "A good token has no gradient of its own above 1.2, but others share "
            "its weights, and carry it on.": "below 1.2",
        },
    ),
)
