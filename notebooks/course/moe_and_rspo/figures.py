"""Figures and explorers of chapter 09: experts that change, γ, samplers that differ."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import COLOURS, FREE, GREY, PAPER, looks_of
from refimpl import moe
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import curve
from refimpl.moe import Routing
from refimpl.rollout import Rollout

RSPO = COLOURS["rspo"]
STAYED, CAME = FREE[3], FREE[0]
RATIOS = curve("gmpo").ratio
DRIFTS = torch.linspace(0, 1.5, 121, dtype=torch.float64)


def at_tokens(x: Tensor, rollout: Rollout) -> Tensor:
    """(B, L, …) at positions of `ids` -> (B, T, …) where each token is predicted."""
    places = rollout.positions - 1
    return torch.stack([row[i] for row, i in zip(x, places)])


def routing(rollout: Rollout, after: Routing, tokenizer, shortest: int = 12) -> Figure:
    """Experts of an answer's tokens before and after training; the same replayed.

    The answer is the one whose experts changed most, of those of `shortest` to 20
    tokens. Rows are experts, columns tokens.
    """
    was = at_tokens(rollout.experts, rollout)
    now = at_tokens(after.favoured(len(rollout)), rollout)
    lost = (1 - moe.overlap(was, now).mean(-1)) * rollout.mask
    fits = (rollout.length >= shortest) & (rollout.length <= 20)
    i = int(torch.where(fits, lost.sum(-1) / rollout.length, -1.0).argmax())
    text = [*rollout.texts(tokenizer)[i], "■"][: int(rollout.length[i])]
    was, now, size = was[i].tolist(), now[i].tolist(), after.logits[0].shape[-1]
    figure, axes = plt.subplots(2, 2, figsize=(8, 5), sharey=True)
    for column, title, used in (
        (axes[:, 0], "after 16 updates", now),
        (axes[:, 1], "the same, old experts replayed", was),
    ):
        for layer, axis in enumerate(column):
            for t in range(len(text)):
                old, new, favoured = (set(x[t][layer]) for x in (was, used, now))
                for e in old | new | favoured:
                    _cell(axis, t, e, old, new, favoured)
            axis.set(ylim=(size + 0.02, -0.04), xlim=(0, len(text)))
            axis.set_yticks([k + 0.5 for k in (0, size - 1)], ["0", f"{size - 1}"])
            axis.set_xticks([])
            axis.grid(False)
            if not layer:
                places = [t + 0.5 for t in range(len(text))]
                axis.xaxis.tick_top()
                axis.set_xticks(places, text, family="monospace", fontsize=12)
                axis.tick_params("x", length=0)
                axis.set_title(title)
    for layer, axis in enumerate(axes[:, 0], 1):
        axis.set_ylabel(f"layer {layer}: expert")
    figure.legend(
        [
            Patch(facecolor=STAYED),
            Patch(facecolor=PAPER, edgecolor=CAME, linewidth=1.5),
            Patch(facecolor=CAME),
            plt.Line2D([], [], marker="o", linestyle="", color=CAME, markersize=5),
        ],
        ["still visited", "left", "new", "new, if it could choose"],
        loc="outside lower left",
        ncols=4,
    )
    return draw.finding(figure, "After 16 updates some tokens visit another expert")


def _cell(axis, t: int, e: int, old: set, new: set, favoured: set) -> None:
    """Expert e of token t: kept, left, new, or what the router would have liked."""
    if e in old | new:
        face = PAPER if e not in new else STAYED if e in old else CAME
        edge = CAME if e not in new else face
        look = {"facecolor": face, "edgecolor": edge, "linewidth": 1.5}
        axis.add_patch(Rectangle((t + 0.08, e + 0.1), 0.84, 0.8, **look))
    else:
        axis.plot(t + 0.5, e + 0.5, "o", color=CAME, markersize=4)


def coefficients(gamma: float, sign: int, placement: str = "before_clip") -> Tensor:
    """c of RSPO at each of `RATIOS`, for a response of one token that has drifted."""
    logp = RATIOS.log()[:, None].requires_grad_()
    zero, one = torch.zeros_like(logp), torch.ones_like(logp)
    old_logp, weight = moe.shifted(zero, one, one, gamma * one, placement)
    loss = ALGORITHMS["rspo"].policy_loss(logp, old_logp, sign * one, one, weight)
    return torch.autograd.grad(-loss.loss, logp)[0][:, 0] / sign


def placements(gamma: float) -> Figure:
    """The gradient coefficient with γ before the clip, after it, and without γ."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True)
    for axis, (sign, title) in zip(axes, draw.SIGNS.items()):
        named = {
            "GMPO": curve("gmpo", sign).coefficient,
            "RSPO": coefficients(gamma, sign),
            "RSPO, γ after the clip": coefficients(gamma, sign, "after_clip"),
        }
        draw.curve_panel(axis, RATIOS, named, looks_of(named), title=title)
        axis.set(xlabel="ratio $r$", xlim=(0, 2.5), ylim=(-0.06, 2.1))
        draw.rule(axis, x=1)
    axes[0].set_ylabel("coefficient $c$")
    title = f"γ = {gamma:g} weakens a token, and before the clip it moves the bound"
    return draw.heading(figure, axes[0], title)


def gamma_of(drift: Tensor, floor: float, k: int) -> Tensor:
    """γ where one of k experts has drifted and the others stand still; one layer."""
    old = torch.zeros(*drift.shape, 1, k, dtype=drift.dtype)
    new = old.clone()
    new[..., 0] = -drift[..., None]
    return moe.router_shift(new, old, floor)


def shift_explorer() -> explorer.Explorer:
    """Left: γ against the drift of one expert. Right: what γ does to c, both signs."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 3.8), width_ratios=(5, 4, 4))
    left, *panels = axes
    for k, dash in ((1, ":"), (2, "-."), (8, "--")):
        (fixed,) = left.plot(DRIFTS, gamma_of(DRIFTS, 1e-3, k), color=GREY, ls=dash)
        fixed.set_linewidth(1.4)
        left.text(1.52, fixed.get_ydata()[-1], f"k = {k}", va="center", fontsize=10)
    (mine,) = left.plot(DRIFTS, DRIFTS, color=RSPO)
    (dot,) = left.plot([0], [0], "o", color=RSPO, markersize=9)
    left.set(xlim=(0, 1.95), ylim=(0, 1.05), xticks=(0, 0.5, 1, 1.5))
    left.set(xlabel="drift of one expert, nats", title="γ = 0.000")
    moving = []
    for axis, (sign, title) in zip(panels, draw.SIGNS.items()):
        named = {"GMPO": curve("gmpo", sign).coefficient, "RSPO": RATIOS}
        draw.curve_panel(axis, RATIOS, named, looks_of(named), title=title)
        axis.set(xlim=(0, 2.5), ylim=(-0.06, 2.1), xlabel="ratio $r$")
        moving.append(axis.lines[1])
    panels[0].set_ylabel("coefficient $c$")
    panels[1].set_yticklabels([])
    title = "The further a router drifts, the less its token counts"
    draw.heading(figure, panels[0], title)

    def update(drift: float, floor: float, experts: int) -> list:
        mine.set_ydata(gamma_of(DRIFTS, floor, experts).numpy())
        gamma = gamma_of(torch.tensor([drift]).double(), floor, experts).item()
        dot.set_data([drift], [gamma])
        left.set_title(f"γ = {gamma:.3f}")
        for line, sign in zip(moving, draw.SIGNS):
            line.set_ydata(coefficients(gamma, sign).numpy())
        title = draw.say(
            figure, f"One expert drifts by {drift:g} nats: its token counts {gamma:.0%}"
        )
        return [mine, dot, left.title, *moving, title]

    return explorer.Explorer(
        figure,
        update,
        {
            "drift": explorer.slider("drift of one expert", 0.6, 0.0, 1.5, 0.1),
            "floor": explorer.slider("floor γ_min", 0.7, 0.05, 1.0, 0.05),
            "experts": explorer.slider("experts per token, k", 2, 1, 8, 1),
        },
        stakes=stakes.ended(
            {"RSPO": "RSPO", "GMPO, without γ": "GMPO"}, rate=6e-4, world="moe"
        ),
        prediction=stakes.Prediction(
            "With more experts per token, does the drift of one of them cost the token "
            "more, or less?",
            ("more", "less"),
            "less",
            "γ is a mean over the experts, and the others stand still.",
        ),
    )


EDGES = [i / 20 for i in range(-20, 21)]


def histogram(values: Sequence[float]) -> list[int]:
    """Counts between `EDGES`; the end bins hold what is beyond them."""
    inside = torch.as_tensor(values).float().clamp(EDGES[0], EDGES[-1])
    return torch.histogram(inside, torch.tensor(EDGES)).hist.int().tolist()


def noise_explorer(gaps: Mapping[float, tuple[Tensor, Tensor]]) -> explorer.Explorer:
    """`gaps[noise]`: log π_old − log μ of every token, free and with R3."""
    figure, axis = plt.subplots(figsize=(draw.NARROW, 4.2))
    counts = {noise: [histogram(g) for g in pair] for noise, pair in gaps.items()}
    for values, label, look in zip(
        counts[0.5],
        ("own experts", "the sampler's experts (R3)"),
        ({"color": FREE[3], "fill": True}, {"color": FREE[0], "fill": False}),
    ):
        axis.stairs(values, EDGES, label=label, linewidth=2, baseline=0.7, **look)
    axis.set(yscale="log", ylabel="tokens", ylim=(0.7, 2e4))
    axis.set_xticks((-1, -0.5, 0, 0.5, 1))
    draw.plain_ticks(axis.yaxis, (1, 10, 100, 1000, 10_000))
    axis.set_xlabel(r"$\log\pi_{\rm old} - \log\mu$, nats (end bins: beyond)")
    title = "With the sampler's experts replayed, the two engines agree more"
    draw.heading(figure, axis, title)
    draw.caption(figure, "all tokens of 1 rollout for each noise")

    def update(noise: float) -> list:
        for bars, values in zip(axis.patches, counts[noise]):
            bars.set_data(values)
        own, replayed = (far(gap) for gap in gaps[noise])
        title = draw.say(
            figure,
            f"Noise {noise:g}: {own:.1%} of tokens are off by more than 0.1 nats, with "
            f"R3 {replayed:.1%}",
        )
        return [*axis.patches, title]

    def far(gap: Tensor) -> float:
        return (gap.abs() > 0.1).double().mean().item()

    def outcome(noise: float) -> str:
        both = {"GRPO": "GRPO", "with R3": "GRPO + R3"}
        if noise < 0.1:
            return f"Without noise. {stakes.ended(both, rate=6e-4, world='moe')}"
        known = stakes.ended(both, rate=6e-4, world="moe", router_noise=0.2)
        return f"With noise 0.2. {known}"

    control = explorer.stops("noise on the router logits", list(gaps), 0.5)
    return explorer.Explorer(
        figure,
        update,
        {"noise": control},
        stakes=outcome,
        prediction=stakes.Prediction(
            "The sampler's experts are replayed. Do both engines agree exactly then?",
            ("yes", "no"),
            "no",
            "The choice of experts is the same, and the noisy weights with which they "
            "are mixed still differ.",
        ),
    )


def final_accuracies(
    settings: Mapping[str, Mapping[str, Sequence[float]]], title: str
) -> Figure:
    """Final accuracy by warm start: a panel per setting, a row per arm."""
    height = 0.36 * max(map(len, settings.values())) + 1.6
    figure, axes = draw.panel_grid(len(settings), (8, height), sharey=True)
    for axis, (setting, starts) in zip(axes, settings.items()):
        draw.dots(axis, starts, what="")
        axis.set(xlim=(0, 1.02), title=setting, xlabel="held-out accuracy")
    draw.finding(figure, title)
    return draw.caption(
        figure, "dots: 5 warm starts, means of their 1 to 4 runs; bar: median"
    )
