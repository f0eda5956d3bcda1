"""Figures, tables and explorers of chapter 02: the clip, credit, ratios."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.shared import curves
from course.kit.plots.style import BAD, BLACK, FREE, GOOD, GREY, looks_of
from course.kit.runs import of_runs
from course.kit.tables import as_table
from refimpl.advantages import Scored, gae
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import Curve, curve
from refimpl.history import History

WANTED = {1: ("correction", "wanted", "enough"), -1: ("enough", "wanted", "correction")}
ARROWS = {1: "r should rise", -1: "r should fall"}
EPSILON = 0.2


def last_three(name: str):
    return lambda history: statistics.fmean(history[name][-3:])


MEASURES = {
    "accuracy": ("held-out\naccuracy", lambda history: history.accuracy),
    "careful": ("careful answers,\nlast 3 rollouts", last_three("habit/careful")),
    "at once": ("careful answers,\nrollout 2", lambda h: h["habit/careful"][1]),
    "skill before": (
        "of these right,\nrollout 1",
        lambda history: history["habit_accuracy/careful"][0],
    ),
    "skill": ("of these right,\nlast 3 rollouts", last_three("habit_accuracy/careful")),
    "largest": ("largest\n|r − 1|", lambda h: max(h["ratio/max_deviation"])),
}
"""Columns of the chapter's tables of runs: a heading, and how to compute it."""

Runs = Mapping[str, Sequence[History]]


def measured(name: str, histories: Sequence[History]) -> list[float]:
    """One of `MEASURES`, for every run."""
    return [MEASURES[name][1](history) for history in histories]


def mean(name: str, histories: Sequence[History]) -> float:
    return statistics.fmean(measured(name, histories))


def titled(name: str) -> str:
    """A method's name as figures and tables write it; other labels stay."""
    return ALGORITHMS[name].title if name in ALGORITHMS else name


def table(runs: Runs, names: Sequence[str], digits: int = 2) -> None:
    """Show a row for each method and a column for each of these `MEASURES`."""
    rows = []
    for method, histories in runs.items():
        texts = [of_runs(measured(name, histories), digits) for name in names]
        texts = [text.split(", n")[0] + ")" for text in texts]
        rows.append([titled(method), len(histories), *texts])
    heads = [MEASURES[name][0].replace("\n", " ") for name in names]
    as_table(rows, ["median (range) of n seeds", "n", *heads])


def six_cases(by_sign: dict[int, Curve], low: float = 0.2, high: float = 0.2) -> Figure:
    """The clipped objective: thick where the token has a gradient, dotted where none.

    The cases are numbered from left to right, first for Â > 0, then for Â < 0.
    """
    figure, axes = plt.subplots(1, 2, figsize=(8, 4))
    for column, (axis, sign) in enumerate(zip(axes, (1, -1))):
        ratio, objective, coefficient = by_sign[sign]
        top = float(ratio.max())
        edges = (0, 1 - low, 1 + high, top)
        bottom, ceiling = (0, 2.0) if sign > 0 else (-2.0, 0)
        axis.plot(ratio, objective, color=GREY, linestyle=":", linewidth=2)
        shown = objective.masked_fill(coefficient == 0, float("nan"))
        axis.plot(ratio, shown, color=GOOD if sign > 0 else BAD, linewidth=4)
        for i, word in enumerate(WANTED[sign]):
            dead = word == "enough"
            axis.axvspan(edges[i], edges[i + 1], color=GREY, alpha=0.22 * dead, lw=0)
            note = "no gradient" if dead else ("pull back" if i != 1 else "push")
            arrow = "" if dead else ("\n→" if sign > 0 else "\n←")
            place = (edges[i] + edges[i + 1]) / 2, bottom + 0.97 * (ceiling - bottom)
            centre = {"ha": "center", "va": "top"}
            number = str(3 * column + i + 1)
            axis.text(*place, number, fontsize=15, weight="bold", **centre)
            below = place[0], bottom + 0.87 * (ceiling - bottom)
            label = f"{word + ':' if i != 1 else ''}\n{note}{arrow}"
            narrow = {"fontsize": 11, "linespacing": 1.15}
            axis.text(*below, label, **narrow, **centre)
        for edge in (1 - low, 1 + high):
            draw.rule(axis, x=edge, colour=BLACK, dash="-")
        ticks = ["0", r"$1-\varepsilon$", r"$1+\varepsilon$", f"{top:g}"]
        axis.set_xticks([0, 1 - low, 1 + high, top], ticks)
        axis.set(xlim=(0, top), ylim=(bottom, ceiling), xlabel="ratio $r$")
        axis.set_yticks(range(int(bottom), int(ceiling) + 1))
        axis.set_title(rf"$\hat{{A}}{'>' if sign > 0 else '<'}0$: {ARROWS[sign]}")
        axis.grid(False)
    axes[0].set_ylabel("objective")
    return draw.finding(
        figure, "The clip is one-sided: only cases 3 and 4 lose their gradient"
    )


def credit(responses: Sequence[tuple[str, Sequence, Sequence]], title: str) -> Figure:
    """V before each token (line) and the advantage of each token (bars).

    `responses` holds (title, tokens as text, values, advantages).
    """
    size = (8, 1.55 * len(responses) + 0.9)
    figure, axes = draw.panel_grid(len(responses), size, 1, sharey=True)
    width = max(len(tokens) for _, tokens, _, _ in responses)
    for axis, (name, tokens, values, advantages) in zip(axes, responses):
        where = range(len(tokens))
        colours = [GOOD if a >= 0 else BAD for a in advantages]
        axis.bar(where, advantages, color=colours, width=0.75)
        axis.step(where, values, color=BLACK, where="mid", linewidth=1.6)
        draw.rule(axis, y=0, colour=BLACK, dash="-", width=0.6)
        axis.set_xticks(where, tokens, fontsize=12, family="monospace")
        axis.set(xlim=(-0.7, width - 0.3), ylim=(-1.25, 1.25), yticks=[-1, 0, 1])
        axis.set_title(name, loc="left", fontsize=12)
        axis.grid(False, axis="x")
    axes[0].plot([], [], color=BLACK, label="V before the token")
    axes[0].bar([0], [0], color=GOOD, label=r"$\hat{A}>0$")
    axes[0].bar([0], [0], color=BAD, label=r"$\hat{A}<0$")
    draw.legend_outside(figure, axes[0], 3, "lower")
    return draw.finding(figure, title)


def clip_explorer() -> explorer.Explorer:
    """Bend the clip: ε below and above 1, and the size of the advantage."""

    def named(size: float, **bounds) -> dict[str, dict[int, Curve]]:
        methods = {"unclipped": ("reinforce", {"correct": True})}
        methods["PPO, your ε"] = "ppo", bounds
        return {
            label: {sign: curve(name, sign * size, **given) for sign in (1, -1)}
            for label, (name, given) in methods.items()
        }

    figure = curves(named(1.0))
    figure.set_size_inches(8, 4.6)  # all four panels fit on a phone, in a column
    rules = [axis.axvline(1, color=GREY, lw=0.8) for axis in figure.axes]
    for axis in figure.axes[:2]:
        axis.set(ylim=(-4.2, 4.2), yticks=[-4, -2, 0, 2, 4])

    def side(sign: int, size: float, at: float, words: str, **bounds) -> list:
        """A sign's objective, above, and its coefficient, below."""
        objective, coefficient = figure.axes[sign < 0 :: 2]
        for name, one in named(size, **bounds).items():
            i = name != "unclipped"
            objective.lines[i].set_ydata(one[sign].objective.numpy())
            coefficient.lines[i].set_ydata(one[sign].coefficient.numpy())
        for rule in rules[sign < 0 :: 2]:
            rule.set_xdata([at, at])
        objective.set_title(f"{words} {at:.2f}")
        lines = [*objective.lines[:2], *coefficient.lines[:2]]
        return [*lines, *rules[sign < 0 :: 2], objective.title]

    def good(epsilon_high: float, size: float) -> list:
        words = "Â > 0: no gradient above"
        return side(1, size, 1 + epsilon_high, words, epsilon_high=epsilon_high)

    def bad(epsilon_low: float, size: float) -> list:
        words = "Â < 0: no gradient below"
        return side(-1, size, 1 - epsilon_low, words, epsilon_low=epsilon_low)

    def said(epsilon_high: float) -> list:
        told = f"The clip stops a good token once it is {1 + epsilon_high:.2f} times"
        return [draw.say(figure, f"{told} as likely")]

    def outcome(epsilon_high: float) -> str:
        narrow = stakes.nearest(1 + epsilon_high, (1.2, 1.49)) == 1.2
        label = f"GRPO with the clip {'0.80 to 1.20' if narrow else '0.67 to 1.49'}"
        arm = "GRPO" if narrow else "GRPO (0.67, 1.49)"
        return stakes.ended({label: arm}, rate=6e-4)

    controls = {
        "epsilon_low": explorer.slider("ε low", 0.2, 0.02, 0.9, 0.02),
        "epsilon_high": explorer.slider("ε high", 0.2, 0.02, 1.5, 0.02),
        "size": explorer.slider("|advantage|", 1.0, 0.25, 2.0, 0.25),
    }
    return explorer.Explorer(
        figure,
        [good, bad, said],
        controls,
        stakes=outcome,
        prediction=stakes.Prediction(
            "Raise ε high alone. Whose curve changes?",
            ("that of good tokens", "that of bad tokens", "both"),
            "that of good tokens",
            "PPO takes the minimum of two objectives, and for a bad token the upper "
            "bound is never the smaller one.",
        ),
        name="02_clip",
    )


def ratio_explorer(
    clipped: Sequence[Tensor], free: Sequence[Tensor], advantages: Tensor
) -> explorer.Explorer:
    """Histograms of the tokens' ratios after each update, with and without the clip.

    `clipped[k]` and `free[k]` are the ratios of all tokens after k updates, (tokens,).
    """
    low, high, top = 1 - EPSILON, 1 + EPSILON, 8.0
    edges = torch.tensor([top ** (i / 40) for i in range(-40, 41)])
    signs = [(1, GOOD, (high, top)), (-1, BAD, (1 / top, low))]

    def counts(ratios: Tensor, sign: int) -> list[float]:
        inside = ratios[advantages * sign > 0].clamp(edges[0], edges[-1] - 1e-3)
        return torch.histogram(inside, edges).hist.clamp(min=0.5).tolist()

    held = [[counts(r, sign) for r in clipped] for sign, *_ in signs]
    wild = [[counts(r, sign) for r in free] for sign, *_ in signs]

    figure, axes = plt.subplots(1, 2, figsize=(8, 4.2), sharey=True)
    ticks = [0.125, 0.25, 0.5, low, high, 2, 4, 8]
    names = ["≤⅛", "¼", "½", f"{low:.1f}", f"{high:.1f}", "2", "4", "≥8"]
    stairs = []
    for axis, (sign, colour, beyond), ours, theirs in zip(axes, signs, held, wild):
        axis.axvspan(*beyond, color=GREY, alpha=0.22, linewidth=0)
        filled = {"fill": True, "color": colour, "alpha": 0.85, "baseline": 0.5}
        stairs.append(axis.stairs(ours[0], edges, label="with the clip", **filled))
        outline = {"color": BLACK, "linewidth": 1.2, "baseline": 0.5}
        stairs.append(axis.stairs(theirs[0], edges, label="without", **outline))
        axis.set(xscale="log", yscale="log", ylim=(0.5, 4000), xlim=(1 / top, top))
        first, *_, last = axis.set_xticks(ticks, names)
        first.label1.set_ha("left")  # not into the other panel
        last.label1.set_ha("right")
        axis.set_xticks([], minor=True)
        axis.set_xlabel("ratio $r$ (grey: no gradient)")
        corner = "upper left" if sign > 0 else "upper right"
        axis.legend(loc=corner, handlelength=1.6)
    axes[0].set_ylabel("tokens")
    draw.caption(figure, "all tokens of one rollout")

    def move(updates: int) -> list:
        for i, (sign, *_) in enumerate(signs):
            stairs[2 * i].set_data(held[i][updates])
            stairs[2 * i + 1].set_data(wild[i][updates])
            ratios = clipped[updates][advantages * sign > 0]
            dead = (ratios > high) if sign > 0 else (ratios < low)
            stopped = f"no gradient for {dead.float().mean():.0%}"
            axes[i].set_title(f"{draw.SIGNS[sign]}: {stopped}")
        ours, theirs = (beyond(ratios[updates]) for ratios in (clipped, free))
        told = f"Tokens out of bounds after {updates} update{'s' * (updates != 1)}: "
        told += f"{ours:.1%}, without the clip {theirs:.1%}"
        return [*stairs, *(axis.title for axis in axes), draw.say(figure, told)]

    def beyond(ratios: Tensor) -> float:
        return ((ratios > high) | (ratios < low)).double().mean().item()

    both = {"with PPO's clip": "PPO", "with a cap of 5 in its place": "CISPO 5"}
    return explorer.Explorer(
        figure,
        [move],
        {"updates": explorer.slider("updates so far", 16, 0, 16, 1)},
        stakes=stakes.ended(both, rate=6e-4),
        prediction=stakes.Prediction(
            "Does the clip keep all ratios inside its bounds?",
            ("yes", "no"),
            "no",
            "It only stops the push of a token that is outside. The other tokens' "
            "gradients share its weights and move it all the same.",
        ),
        name="02_ratios",
    )


def ladder(skill: Mapping[str, Sequence[float]], before: float, title: str) -> Figure:
    """The share of careful answers that are right at the end, and `before`."""
    figure, axis = plt.subplots(figsize=(5.5, 4))
    draw.dots(axis, skill, [colour for colour, _ in looks_of(skill)], what="")
    kept = {label: draw.median(values) for label, values in skill.items()}
    for row, share in enumerate(kept.values()):
        axis.text(share, row - 0.34, f"{share:.0%}", ha="center", va="bottom")
    said = [f"{label} {share:.0%}" for label, share in kept.items()]
    axis.set_ylabel("; ".join(said), visible=False)  # for the picture's words
    draw.rule(axis, x=before, colour=BLACK, dash="--", width=1.2)
    axis.text(before - 0.02, 0, "before the\nfirst update", ha="right", va="center")
    axis.set(xlim=(0, 1.03), xticks=[0, 0.25, 0.5, 0.75, 1])
    axis.set_xlabel("share of careful answers that are right,\nlast three rollouts")
    return draw.caption(draw.finding(figure, title), draw.DOTS)


LISTING = """\
old_logp, V = log_prob(actions).detach(), value(states).detach()
raw = gae(rewards, V)
advantages = (raw - raw.mean()) / raw.std()
targets = advantages + V
for _ in range(4):
    r = (log_prob(actions) - old_logp).exp()
    clipped = r.clamp(0.8, 1.2)
    gain = torch.minimum(r * advantages, clipped * advantages)
    error = (value(states) - targets) ** 2
    step((error / 2 - gain).mean())
"""
"""One rollout's updates, with one line wrong: the exercise "find the bug"."""
MENDED = {4: "targets = raw + V"}


def find_the_bug(seeds: Sequence[int] = (0, 1, 2)) -> Figure:
    """Print `LISTING` with line numbers, and run it next to the corrected version."""
    lines = LISTING.splitlines()
    for number, line in enumerate(lines, 1):
        print(f"{number:>2}  {line}")
    mended = [MENDED.get(number, line) for number, line in enumerate(lines, 1)]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.5))
    looks = {"the right one": (mended, GREY, "-"), "this run": (lines, FREE[0], "--")}
    for label, (code, colour, dash) in looks.items():
        runs = [_tiny_run("\n".join(code), seed) for seed in seeds]
        for axis, columns in zip(axes, zip(*runs)):
            draw.band(axis, columns, colour, label, dash)
    axes[0].set(title="mean reward of a rollout", ylim=(0, 1.03))
    axes[1].set_title("V before the first token")
    for axis in axes:
        draw.rollout_axis(axis)
    axes[0].legend(loc="lower right")
    return draw.finding(figure, "The reward looks healthy; what about V?")


def _tiny_run(code: str, seed: int, rollouts: int = 60) -> tuple[list, list]:
    """PPO on answers of three tokens, 0 or 1 each; tables for policy and critic.

    The first token decides: a 1 is right with probability 0.9, a 0 with 0.3. `code` is
    what happens after every rollout of 32 answers.
    """
    generator = torch.Generator().manual_seed(seed)
    policy = torch.zeros(3, 2, requires_grad=True)  # logits by position
    critic = torch.zeros(5, requires_grad=True)  # by position and first token
    optimizer = torch.optim.Adam([policy, critic], lr=0.05)
    rows, one = torch.arange(32), torch.ones(32, 3)

    def step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    paid, first = [], []
    for _ in range(rollouts):
        odds = policy.detach().softmax(-1)
        actions = torch.multinomial(odds, 32, True, generator=generator).T
        luck = torch.rand(32, generator=generator)
        score = (luck < 0.3 + 0.6 * actions[:, 0]).float()
        rewards = torch.zeros(32, 3)
        rewards[:, -1] = score
        start = torch.zeros(32, dtype=torch.long)
        states = torch.stack([start, 1 + actions[:, 0], 3 + actions[:, 0]], 1)
        room = {
            "torch": torch,
            "step": step,
            "actions": actions,
            "states": states,
            "rewards": rewards,
            "gae": lambda rewards, V: gae(Scored(rewards, rows, one, V)),
            "value": lambda states: critic[states],
            "log_prob": lambda actions: policy.log_softmax(-1)[range(3), actions],
        }
        exec(code, room)
        paid.append(score.mean().item())
        first.append(critic[0].item())
    return paid, first
