"""Figure and explorer of chapter 09: experts that change, and γ."""

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
    """Draw expert e of token t: kept, left, new, or the router's own preference."""
    if e in old | new:
        face = PAPER if e not in new else STAYED if e in old else CAME
        edge = CAME if e not in new else face
        look = {"facecolor": face, "edgecolor": edge, "linewidth": 1.5}
        axis.add_patch(Rectangle((t + 0.08, e + 0.1), 0.84, 0.8, **look))
    else:
        axis.plot(t + 0.5, e + 0.5, "o", color=CAME, markersize=4)


def coefficients(gamma: float, sign: int) -> Tensor:
    """c of RSPO at each of `RATIOS`, for a response of one token that has drifted."""
    old, one = torch.full_like(RATIOS, -5)[:, None], torch.ones_like(RATIOS)[:, None]
    logp = (old + RATIOS.log()[:, None]).requires_grad_()  # log-probs, below 0
    old_logp, weight = moe.shifted(old, one, one, gamma * one)
    loss = ALGORITHMS["rspo"].policy_loss(logp, old_logp, sign * one, one, weight)
    return torch.autograd.grad(-loss.loss, logp)[0][:, 0] / sign


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
    draw.heading(figure, panels[0])

    def curve_of(floor: float, experts: int) -> list:
        mine.set_ydata(gamma_of(DRIFTS, floor, experts).numpy())
        return [mine]

    def here(drift: float, floor: float, experts: int) -> list:
        gamma = gamma_of(torch.tensor([drift]).double(), floor, experts).item()
        dot.set_data([drift], [gamma])
        left.set_title(f"γ = {gamma:.3f}")
        for line, sign in zip(moving, draw.SIGNS):
            line.set_ydata(coefficients(gamma, sign).numpy())
        told = f"One expert drifts by {drift:g} nats: its token counts {gamma:.0%}"
        return [dot, left.title, *moving, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [curve_of, here],
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
            "γ is a mean over the experts, and the other experts have not moved.",
        ),
        name="09_router_shift",
    )
