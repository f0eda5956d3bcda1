"""Six pictures of one token, each with one slider."""

import matplotlib.pyplot as plt
import torch

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import BAD, BLACK, GOOD, GREY, INK, METHODS
from course.tour import token
from refimpl.curves import curve

SHORT = ("3+9=12…", "#14", "#16", "?8+2=1…")
OPENERS = ("3", "#", "#", "?")
CHANCES = (0.05, 0.1, 0.15, 0.2, 0.225, 0.25, 0.275, 0.29, 0.31, 0.325, 0.35, 0.4)
CHANCES += (0.5, 0.6)
"""Where our token's probability may go; 0.30, the very edge of the clip, is left out.
"""
PALE = "#DADAD6"


def baseline_explorer() -> explorer.Explorer:
    """The push on each first token, while everybody gets some points more."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.7), sharey=True)
    plain, centred = map(Bars, axes)
    axes[0].set(title="pushed by the reward", ylim=(-1.6, 4.6))
    axes[1].set_title("pushed by the reward minus the mean")
    draw.caption(figure, "blue: right answers, red: wrong ones; outlined: our token")

    def move(points: float) -> list:
        paid = [reward + points for reward in token.REWARDS]
        mean = sum(paid) / len(paid)
        moved = plain.to(paid) + centred.to([reward - mean for reward in paid])
        told = f"Everybody gets {signed(points, 1)}: our token is pushed by "
        told += f"{signed(paid[0], 1)}, or by {signed(paid[0] - mean, 1)}"
        return [*moved, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"points": explorer.slider("points for everybody", 0.0, -1.0, 3.0, 0.5)},
        prediction=stakes.Prediction(
            "Give everybody 2 points more. Which way is the first character of the "
            "wrong answer #14 then pushed, if nothing is subtracted?",
            ("up", "down", "not at all"),
            "up",
            "Its reward is now 2, and the push is the reward.",
        ),
        name="tour_baseline",
    )


def clip_explorer() -> explorer.Explorer:
    """Our token's probability then and now, and how hard PPO still pushes it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.7))
    bars = left.bar((0, 1), (token.SAMPLED, 0), 0.62, color=(PALE, GOOD))
    left.set_xticks((0, 1), ("when\nsampled", "now"))
    left.set(title="probability of our token", ylim=(0, 0.66))
    made = curve("ppo", 0.5)
    push = 0.5 * made.coefficient
    draw.line(right, made.ratio, push, *METHODS["ppo"], lw=2.6)
    right.axvspan(1.2, 2.5, color=GREY, alpha=0.18, lw=0)
    right.text(1.85, 0.6, "the clip:\nno push", ha="center", va="center")
    draw.rule(right, x=1)
    right.set(title="push on our token", xlim=(0, 2.5), ylim=(-0.03, 0.72))
    right.set_xlabel("how many times as likely as when sampled")
    (here,) = right.plot([1], [0.5], "o", color=BLACK, markersize=10)

    def move(now: float) -> list:
        bars[1].set_height(now)
        ratio = now / token.SAMPLED
        left_over = pushed("ppo", ratio)
        here.set_data([ratio], [0.5 * left_over])
        told = "As likely as when sampled: "
        if now != token.SAMPLED:
            told = f"{ratio:.3g} times as likely as when sampled: "
        told += f"the push is {0.5 * left_over:.2g}" if left_over else "no push is left"
        return [bars[1], here, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"now": explorer.stops("its probability now", CHANCES, token.SAMPLED)},
        prediction=stakes.Prediction(
            "Our token has become less likely, 0.15, although its answer was right. "
            "Does the clip stop its push?",
            ("yes", "no"),
            "no",
            "The clip stops only tokens that have already moved the way they are "
            "pushed. This one should come back, and its push lets it.",
        ),
        name="tour_clip",
    )


def group_explorer() -> explorer.Explorer:
    """Four advantages while k answers are right, and how many groups teach nothing."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.7))
    bars = Bars(left, ("ours", "second", "third", "fourth"))
    left.set(title="push on each first token", ylim=(-1.9, 1.9))
    share = torch.linspace(0, 1, 101)
    dead = share**4 + (1 - share) ** 4
    right.plot(share, dead, color=INK)
    (here,) = right.plot([0.5], [0.125], "o", color=BLACK, markersize=10)
    right.set(xlabel="how often the model is right", ylim=(0, 1.05))
    right.set_title("groups of four that teach nothing")
    percent(right.xaxis), percent(right.yaxis)

    def move(k: int) -> list:
        paid = [1.0] * k + [0.0] * (4 - k)
        made = token.advantages("grpo", paid)
        bars.paint([reward > 0.5 for reward in paid])
        moved = bars.to(made)
        chance = k / 4
        here.set_data([chance], [chance**4 + (1 - chance) ** 4])
        told = f"{k} of 4 right: our token is pushed by {signed(made[0])}"
        if k in (0, 4):
            told = f"{k} of 4 right: nobody is pushed, and nothing is learnt"
        return [*moved, here, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"k": explorer.slider("right answers, ours first", 2, 0, 4, 1)},
        prediction=stakes.Prediction(
            "All four answers are right. How hard is our token pushed?",
            ("as hard as before", "twice as hard", "not at all"),
            "not at all",
            "It is as good as the mean of its group, so it stands out by nothing.",
        ),
        name="tour_group",
    )


AVERAGES = {"grpo": 75, "dr_grpo": 3.7, "dapo": 40}
"""Half the height of a method's panel, in thousandths."""


def average_explorer() -> explorer.Explorer:
    """The push on each first token by three ways to average, and our answer's length.

    Pushes are weight × advantage, in thousandths.
    """
    figure, axes = plt.subplots(1, 3, figsize=(8, 3.7))
    panels = {}
    for axis, (name, top) in zip(axes, AVERAGES.items()):
        panels[name] = Bars(axis, OPENERS, size=10, digits=0 if top > 9 else 1)
        axis.set(title=token.ALGORITHMS[name].title, ylim=(-top, top))
    axes[0].set_ylabel("push, in thousandths")
    draw.caption(figure, "letters: first characters of the answers; outlined bar: ours")

    def move(length: int) -> list:
        lengths, moved = (length, *token.LENGTHS[1:]), []
        for name, bars in panels.items():
            w, credit = token.weights(name, lengths)[:, 0], token.advantages(name)
            moved += bars.to([1000 * x * a for x, a in zip(w.tolist(), credit)])
        times = length / token.LENGTHS[2]
        hard = "just as hard" if times == 1 else f"{times:.2g} times as hard"
        told = f"{length} tokens: GRPO pushes the lucky guess {hard}"
        return [*moved, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"length": explorer.slider("our answer's tokens", 19, 4, token.LIMIT, 1)},
        prediction=stakes.Prediction(
            "Our answer becomes twice as long. What does GRPO's push on our token do?",
            ("it halves", "it stays", "it doubles"),
            "it halves",
            "GRPO gives each answer one share, which all of its tokens divide.",
        ),
        name="tour_average",
    )


def response_explorer() -> explorer.Explorer:
    """The ratios of our answer's tokens, alone (GRPO) and as one (GSPO)."""
    figure, axes = plt.subplots(
        2, 1, figsize=(draw.NARROW, 4.4), sharex=True, sharey=True
    )
    tokens = [*token.ANSWERS[0], "■"]
    places, rows = range(len(tokens)), []
    for axis in axes:
        rows.append(axis.bar(places, [1.0] * len(tokens), 0.74, color=GOOD))
        draw.rule(axis, y=1, colour=INK)
        axis.set(ylim=(0, 2.6), xlim=(-0.6, len(tokens) - 0.4), ylabel="ratio")
        axis.grid(False)
    axes[1].set_xticks(places, tokens, family="monospace")
    axes[0].set_title("GRPO: a ratio for every token")
    axes[1].set_title("GSPO: one ratio for the answer, 1.000")
    draw.caption(figure, "grey: the token gets no push; outlined: our token")
    for row in rows:
        row[0].set(edgecolor=BLACK, linewidth=2)

    def move(now: float) -> list:
        first = now / token.SAMPLED
        whole = first ** (1 / len(tokens))
        rows[0][0].set_height(first)
        rows[0][0].set_facecolor(GOOD if pushed("grpo", first) else PALE)
        open_ = pushed("gspo", whole)
        for bar in rows[1]:
            bar.set(height=whole, facecolor=GOOD if open_ else PALE)
        axes[1].set_title(f"GSPO: one ratio for the answer, {whole:.3f}")
        told = f"Our token's ratio is {first:.3g}: GRPO drops "
        told += f"{'none' if pushed('grpo', first) else 'this token'}, "
        told += f"GSPO {'none' if open_ else 'all 19'}"
        return [rows[0][0], *rows[1], axes[1].title, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"now": explorer.stops("our token's probability now", CHANCES, token.SAMPLED)},
        prediction=stakes.Prediction(
            "Our token becomes 1.1 times as likely, and no other token moves. How many "
            "of the 19 tokens does GSPO drop?",
            ("none", "ours", "all 19"),
            "all 19",
            "The answer's one ratio is now 1.005. GSPO's bound is 1.0004.",
        ),
        name="tour_response",
    )


TAUS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.8, 12.0, 17.6, 30.0)
AWAY, BACK = 1.3, 0.7


def gate_explorer() -> explorer.Explorer:
    """GRPO's clip and SAPO's gate for a token of a right answer."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9), width_ratios=(1.6, 1))
    hard = curve("grpo")
    draw.line(left, hard.ratio, hard.gate, *METHODS["grpo"], "GRPO's clip", lw=2.2)
    colour, dash = METHODS["sapo"]
    (line,) = left.plot(hard.ratio, hard.gate, color=colour, label="SAPO's gate")
    line.set_linestyle(dash)
    for ratio in (AWAY, BACK):
        draw.rule(left, x=ratio, colour=INK)
    (dots,) = left.plot([BACK, AWAY], [1, 1], "o", color=colour, markersize=9)
    left.set(xlim=(0, 2.5), ylim=(-0.04, 1.12), xlabel="ratio")
    left.set_title("share of the push that is left")
    percent(left.yaxis)
    places = {(x, y): x + 0.36 * y for x in (0, 1) for y in (0, 1)}
    bars, texts = [], []
    for (_, method), x in places.items():
        colour = METHODS[("grpo", "sapo")[method]][0]
        bars += right.bar([x], [0], 0.32, color=colour)
        texts.append(right.text(x, 0, "", ha="center", va="bottom", fontsize=11))
    right.set_xticks((0.18, 1.18), (f"ratio {AWAY}\n(moves on)", f"{BACK}\n(back)"))
    right.set(title="our token", ylim=(0, 1.2), yticks=[])
    draw.heading(figure, left)
    clip = pushed("grpo", AWAY) / AWAY, pushed("grpo", BACK) / BACK

    def move(tau: float) -> list:
        soft = curve("sapo", 1.0, hard.ratio, tau_pos=tau).gate
        line.set_ydata(soft)
        kept = [pushed("sapo", r, tau_pos=tau) / r for r in (AWAY, BACK)]
        dots.set_ydata(kept[::-1])
        for bar, text, height in zip(bars, texts, (clip[0], kept[0], clip[1], kept[1])):
            bar.set_height(height)
            text.set(y=height + 0.02, text=f"{height:.0%}")
        told = f"τ = {tau:g}: the dimmer leaves {kept[0]:.0%} of the push at {AWAY}, "
        told += f"and {kept[1]:.0%} at {BACK}"
        return [line, dots, *bars, *texts, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"tau": explorer.stops("temperature τ", TAUS, 8.8)},
        prediction=stakes.Prediction(
            "The paper takes τ = 1. How much of the push does it leave at ratio 1.3?",
            ("nearly all", "about half", "nearly nothing"),
            "nearly all",
            "At τ = 1 the dimmer is so wide that 98 % of the push is left.",
        ),
        name="tour_gate",
    )


class Bars:
    """Four bars, one for the first token of each answer; ours is outlined."""

    def __init__(self, axis, labels=SHORT, size: float = 11, digits: int = 2):
        self.digits, self.room = digits, axis
        self.bars = axis.bar(range(4), [0.0] * 4, 0.66, linewidth=2)
        self.bars[0].set_edgecolor(BLACK)
        look = {"ha": "center", "fontsize": size}
        self.texts = [axis.text(i, 0, "", **look) for i in range(4)]
        draw.rule(axis, y=0, colour=INK, dash="-")
        axis.set_xticks(range(4), labels, fontsize=11)
        axis.grid(False)
        self.paint([reward > 0.5 for reward in token.REWARDS])

    def paint(self, right: list[bool]) -> None:
        for bar, good in zip(self.bars, right):
            bar.set_facecolor(GOOD if good else BAD)

    def to(self, heights: list[float]) -> list:
        """Move all bars; return what moves."""
        low, high = self.room.get_ylim()
        for bar, text, height in zip(self.bars, self.texts, heights):
            bar.set_height(height)
            below = height < 0
            gap = (high - low) / 50 * (-1 if below else 1)
            text.set(y=height + gap, va="top" if below else "bottom")
            text.set_text(signed(height, self.digits))
        return [*self.bars, *self.texts]


def pushed(name: str, ratio: float, **hyperparameters) -> float:
    """Return what a method leaves of a good token's push: gate × ratio."""
    at = torch.tensor([ratio]).double()
    return curve(name, 1.0, at, **hyperparameters).coefficient.item() + 0.0


def percent(side) -> None:
    side.set_major_formatter(lambda x, _: f"{x:.0%}")


def signed(x: float, digits: int = 2) -> str:
    text = f"{x:+.{digits}f}".replace("-", "−")
    return "0" if float(f"{x:.{digits}f}") == 0 else text
