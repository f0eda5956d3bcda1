"""Misreadings of the soft gate and of its theorem: chapter 11."""

import math

import torch

from course.kit.misreading import Misreading
from course.kit.plain import clipped

TAU = 1.0


def soft(r):
    """f(r) = (4/τ) σ(τ(r − 1)); its slope is the gate sech²(τ(r − 1)/2)."""
    return 4 / TAU * torch.sigmoid(TAU * (r - 1))


def sapo(r, advantage):
    """SAPO's objective of one token: f(r) Â."""
    return soft(r) * advantage


def second_order(z, scores, tau):
    """(τ²/4) Var z · RMS(scores): the bound on the mean gate, used for gradients."""
    return tau**2 / 4 * z.var(correction=0) * scores.pow(2).mean().sqrt()


def first_order(z, scores, tau):
    """sup|g'| · √Var z · RMS(scores), with sup|g'| = 2τ/(3√3)."""
    steepest = 2 * tau / (3 * math.sqrt(3))
    return steepest * z.std(correction=0) * scores.pow(2).mean().sqrt()


MISREADINGS = [
    Misreading(
        "sapo_counts_ratio_twice",
        "SAPO's objective is f(r) times r Â.",
        "f already is the surrogate; differentiating it brings in the ratio, f'(r) r "
        "Â ∇log π. With another r in front, the step on policy is 1 + 2/τ times as "
        "long.",
        {"soft(r)": "soft(r) * r"},
        sapo,
    ),
    Misreading(
        "sapo_without_four_over_tau",
        "SAPO's objective is σ(τ(r − 1)) Â.",
        "4/τ makes the slope at r = 1 exactly 1. Without it the step on policy is τ/4 "
        "times as long, and changing τ changes the learning rate.",
        {"soft(r)": "torch.sigmoid(TAU * (r - 1))"},
        sapo,
    ),
    Misreading(
        "sapo_becomes_grpo",
        "Where the ratios spread, SAPO degrades to GRPO.",
        "It stays a soft gate on each token. GRPO drops a token that moves on and "
        "fully keeps one that comes back; SAPO does neither.",
        clipped,
        sapo,
    ),
    Misreading(
        "mean_gate_bounds_gradient",
        "The gates differ by (τ²/4) Var z, so the gradients do as well.",
        "That bounds only the mean gates. Weighted by the scores, the first-order "
        "term stays: the gradient differs by up to (2τ/3√3) √Var z times their RMS.",
        second_order,
        first_order,
    ),
]
