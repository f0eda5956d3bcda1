"""Figures and the explorer of chapter 02b: estimators of the KL, the best policy."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import BLACK, FREE, GREY


def kl_estimators(d, values: dict, slopes: dict) -> Figure:
    """k1, k2, k3 as functions of the log-ratio d, and their slopes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8))
    styles = ((GREY, "--"), (FREE[1], "-."), (BLACK, "-"))
    names = [rf"$k_{name[1]}$" for name in values]
    left_curves = dict(zip(names, values.values()))
    right_curves = dict(zip(names, slopes.values()))
    draw.curve_panel(left, d, left_curves, styles, title="value", ylim=(-2.5, 6))
    draw.curve_panel(
        right, d, right_curves, styles, "lower right", title="slope, as a loss"
    )
    right.set_ylim(-8, 3)
    for axis in (left, right):
        draw.rule(axis, y=0, colour=BLACK, dash="-", width=0.6)
        draw.rule(axis, x=0, colour=BLACK, dash="-", width=0.6)
        axis.set_xlabel(r"$d=\log\pi_\theta-\log\pi_{\mathrm{ref}}$")
    return draw.finding(figure, "As losses, k₁, k₂ and k₃ pull very differently")


def best_policy(ref: Tensor, rewards: Tensor, beta: float) -> Tensor:
    """π* ∝ π_ref e^{R/β}, as probabilities."""
    return (ref.log() + rewards / beta).softmax(-1)


def best_policy_explorer(
    ref: Sequence[float], rewards: Sequence[float]
) -> explorer.Explorer:
    """The best policy under a KL in the reward, and what it earns, for every β."""
    ref, rewards = torch.tensor(ref).double(), torch.tensor(rewards).double()
    tokens = range(1, len(ref) + 1)

    def measured(beta: float) -> tuple[Tensor, float, float]:
        best = best_policy(ref, rewards, beta)
        kl = torch.xlogy(best, best / ref).sum().item()
        return best, (best @ rewards).item(), kl

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
    left.plot(tokens, ref, "o", color=GREY, ms=12, mfc="none", mew=2, label="reference")
    (mine,) = left.plot(tokens, ref, "D", color=FREE[0], ms=9, label="best policy")
    names = [f"token {t}\nR = {r:g}" for t, r in zip(tokens, rewards.tolist())]
    left.set_xticks(tokens, names)
    left.set(xlim=(0.5, len(ref) + 0.5), ylim=(0, 1), title="probability")
    left.legend(loc="upper right")
    path = [measured(10 ** (k / 20))[1:] for k in range(-30, 41)]
    right.plot([kl for _, kl in path], [reward for reward, _ in path], color=GREY)
    (dot,) = right.plot([0], [0], "D", color=FREE[0], ms=9)
    right.set(title="what β trades", xlabel="KL to the reference (nats)")
    right.set(ylabel="mean reward", ylim=(0, 1.05))
    right.set_xlim(left=0)
    draw.finding(figure, "A small β buys the whole reward, a large one keeps near")

    def move(beta: float) -> list:
        best, reward, kl = measured(beta)
        mine.set_ydata(best.numpy())
        dot.set_data([kl], [reward])
        title = draw.say(
            figure, f"The best policy earns {reward:.2f}, at a KL of {kl:.2f} nats"
        )
        return [mine, dot, title]

    return explorer.Explorer(
        figure,
        [move],
        {"beta": explorer.log_slider("β", 1.0, 0.05, 10.0)},
        stakes="No run with a KL is stored: the claims are about losses, and all of "
        "them are compared at β = 0.",
        prediction=stakes.Prediction(
            "Make β very small. What becomes of two tokens with the same reward of 1?",
            ("both get one half", "they keep their old odds", "the likelier one wins"),
            "they keep their old odds",
            "Both are multiplied by the same factor, so their ratio is that of the "
            "reference.",
        ),
    )
