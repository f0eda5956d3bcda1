"""Figures and explorers of chapter 02b: prices of the KL, the best policy, entropy."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import BLACK, FREE, GREY, INK
from experiments import entropy as stored
from refimpl.advantages import Scored, group_relative
from refimpl.entropy import ClipCov, KLCov, TopEntropy, covariance
from refimpl.rollout import Batch, Rollout


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

    def move(beta: float) -> list:
        best, reward, kl = measured(beta)
        mine.set_ydata(best.numpy())
        dot.set_data([kl], [reward])
        told = f"The best policy earns {reward:.2f}, at a KL of {kl:.2f} nats"
        return [mine, dot, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"beta": explorer.log_slider("β", 1.0, 0.05, 10.0)},
        stakes="No runs with a KL term are stored: the claims are about losses, which "
        "are all compared at β = 0.",
        prediction=stakes.Prediction(
            "Make β very small. What becomes of two tokens with the same reward of 1?",
            ("both get one half", "they keep their old odds", "the likelier one wins"),
            "they keep their old odds",
            "Both are multiplied by the same factor, so their ratio stays that of the "
            "reference.",
        ),
        name="02b_best_policy",
    )


THREE = ("5+6=11;#11■", "#14■", "#4■")
"""Answers of the warm start to `5+6=`, of which the first is right."""
LOGP = ((-1.38, *[0.0] * 10), (-0.81, -0.63, -2.33, 0.0), (-0.81, -4.09, 0.0))
ENTROPY = ((1.09, *[0.01] * 10), (1.09, 1.67, 2.21, 0.0), (1.09, 1.67, 0.01))


def three_answers() -> Batch:
    """The mini-batch of these answers, with log π and entropy in nats."""
    width = max(map(len, THREE))
    rows = [[*x, *[0.0] * (width - len(x))] for x in (*LOGP, *ENTROPY)]
    logp, entropy = torch.tensor(rows).double().view(2, 3, width)
    mask = torch.tensor([[t < len(text) for t in range(width)] for text in THREE])
    rollout = Rollout(
        ids=torch.zeros(3, width + 4, dtype=torch.long),
        prompt_length=torch.full((3,), 4),
        mask=mask.double(),
        logp=logp,
        entropy=entropy,
        truncated=torch.zeros(3).bool(),
        group=torch.zeros(3, dtype=torch.long),
    )
    paid = torch.tensor([1.0, 0.0, 0.0]).double()
    given = group_relative(Scored(paid, rollout.group))[:, None].expand_as(logp)
    return Batch(rollout, rollout.mask, logp, given)


RULES = {
    "the highest entropy": ("trained on", lambda share, b: TopEntropy(share).kept(b)),
    "Clip-Cov": ("dropped", lambda share, b: ~ClipCov(share).kept(b)),
    "KL-Cov": ("held back by a price", lambda share, b: KLCov(share).chosen(b)),
}
"""Names of the rules, and what each does to the tokens that it selects."""


def touched_explorer() -> explorer.Explorer:
    """Entropy and covariance of every token, and which tokens a rule touches."""
    batch = three_answers()
    live = batch.mask.bool()
    entropy, cov = batch.rollout.entropy[live], covariance(batch)[live]
    places, start = [], 0.0
    for text in THREE:
        places += [start + t for t in range(len(text))]
        start += len(text) + 1
    figure, axes = plt.subplots(2, 1, figsize=(draw.NARROW, 4.6), sharex=True)
    bars = [
        axis.bar(places, values.tolist(), 0.8, color=GREY)
        for axis, values in zip(axes, (entropy, cov))
    ]
    axes[0].set(title="entropy, nats", ylim=(0, 2.6))
    axes[1].set(title="covariance $C$ of advantage and log-prob", ylim=(-1.5, 4.5))
    draw.rule(axes[1], y=0, colour=INK, dash="-")
    axes[1].set_xticks(places, "".join(THREE), family="monospace")

    def move(rule: str, share: float) -> list:
        fate, chosen = RULES[rule]
        hit = (chosen(share, batch) & live)[live].tolist()
        for group in bars:
            for bar, on in zip(group, hit):
                bar.set_color(FREE[0] if on else GREY)
        said = f"{rule[0].upper()}{rule[1:]}, share {share:g}: {sum(hit)} of {len(hit)}"
        return [*bars[0], *bars[1], draw.say(figure, f"{said} tokens are {fate}")]

    return explorer.Explorer(
        figure,
        [move],
        {
            "rule": explorer.choice("rule", [*RULES], "the highest entropy"),
            "share": explorer.slider("share of the tokens", 0.2, 0.05, 0.3, 0.05),
        },
        {name: {"rule": name, "share": 0.2} for name in RULES},
        stakes=carried(),
        prediction=stakes.Prediction(
            "Which tokens does Clip-Cov drop?",
            ("the first of each answer", "rare digits of wrong answers", "none"),
            "rare digits of wrong answers",
            "Advantage and log-prob are both far below their means there, so their "
            "product is large.",
        ),
        name="02b_touched_tokens",
    )


def carried() -> str:
    """How the stored runs of `experiments.entropy` went, in words."""
    reward = stored.rewards().groupby(level=0).mean().loc[stored.RATES[0]]
    words = {"all": "all tokens", "top": "the fifth with the highest entropy"}
    words |= {"rest": "the other four fifths", "random": "a random fifth"}
    said = "; ".join(f"{name}: {reward[arm]:.2f}" for arm, name in words.items())
    return f"Stored runs, mean reward over 16 rollouts (5 starts). Trained on {said}."
