"""Mixture of experts: which experts a token visits, replayed, disturbed, compared.

In each sparse layer a *router* gives every token a distribution over E experts; the
token visits the k most probable, and their outputs are mixed by *router weights*. The
choice is discrete: a small change of the weights can send a token to another expert,
and then its log-prob jumps. All of it is seen through one hook on each router.

    with routed(model) as routing:                       # record
    with routed(model, experts=recorded) as routing:     # replay
    with routed(model, noise=0.1, generator=g):          # another engine's router

Any `transformers` model will do whose routers return (logits, scores, indices) with
softmax scores: Qwen3-MoE, Mixtral, OLMoE and others. Of another kind (a sigmoid, say)
nothing is recorded, and it trains as a dense model does. (B, L) are positions of `ids`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from refimpl.arguments import guarded
from refimpl.importance import Mask, sequence_log_ratio
from refimpl.settings import Weight

FREE = -1
"""Stands for an expert that was not recorded: there the router chooses itself."""


@dataclass
class Routing:
    """What the routers did in the last forward pass, a list entry for each layer.

    `logits`: (N, E), with their graph; `experts`: (N, k), the ones that were visited.
    N is the number of tokens that went through, batch × positions.
    """

    logits: list[Float[Tensor, "N E"]] = field(default_factory=list)
    experts: list[Int[Tensor, "N k"]] = field(default_factory=list)

    def copy(self) -> "Routing":
        """The same pass, kept when the next one comes."""
        return Routing(self.logits, self.experts)

    @classmethod
    def join(cls, passes: Sequence["Routing"]) -> "Routing":
        """The tokens of several passes, one after another."""
        logits = zip(*(p.logits for p in passes), strict=True)
        experts = zip(*(p.experts for p in passes), strict=True)
        return cls([torch.cat(x) for x in logits], [torch.cat(x) for x in experts])

    def visited(self, batch: int) -> Int[Tensor, "B L layers k"]:
        """The experts as one tensor of small integers."""
        chosen = torch.stack(self.experts, 1).to(torch.int16)
        return chosen.view(batch, -1, *chosen.shape[1:])

    def chosen(self, batch: int) -> Int[Tensor, "B L layers k"]:
        """The experts that the routers favour, even where others were replayed."""
        k = self.experts[0].shape[-1]
        favoured = torch.stack(self.logits, 1).topk(k).indices.to(torch.int16)
        return favoured.view(batch, -1, *favoured.shape[1:])

    def log_probs(
        self, experts: Int[Tensor, "B L layers k"]
    ) -> Float[Tensor, "B L layers k"]:
        """log of the router's probability of each of `experts`, nats; 0 where FREE."""
        every = wide(torch.stack(self.logits, 1)).log_softmax(-1)  # (N, layers, E)
        every = every.view(*experts.shape[:3], -1)
        found = every.gather(-1, experts.long().clamp(min=0))
        return torch.where(experts == FREE, 0.0, found)


def is_moe(model: nn.Module) -> bool:
    return bool(_routers(model))


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers, first layer first. Raises `ValueError` if there is none."""
    found = _routers(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no router: replay, router shift and router "
            "noise need a mixture of experts, for example the preset 'tiny-moe'"
        )
    return found


@torch.no_grad()
def try_out(model: PreTrainedModel) -> None:
    """One token through `routed`: raises `ValueError` where routing has no softmax."""
    with routed(model):
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device))


def _routers(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m).__name__.endswith("Router")]


@guarded
@contextlib.contextmanager
def routed(
    model: nn.Module,
    *,
    experts: Int[Tensor, "B L layers k"] | None = None,
    noise: Weight = 0.0,
    generator: torch.Generator | None = None,
) -> Iterator[Routing]:
    """Inside the block, every forward pass of `model` is recorded.

    **Arguments:**

    - `experts`: visit these instead of the router's own choice (routing replay).
      Only the *choice* is frozen. The router weights of the visited experts come from
      the live logits, so the router keeps its gradient.
    - `noise`: standard deviation of normal noise on the router logits, drawn from
      `generator`: a stand-in for an inference engine whose numbers differ.

    Raises `ValueError` if the model has no router, or one of another kind.
    """
    routing = Routing()
    every = routers(model)
    if experts is not None and experts.shape[2] != len(every):
        raise ValueError(
            f"experts of {experts.shape[2]} layers were recorded, the model has "
            f"{len(every)} routers"
        )

    def hook(layer: int):
        normalised = None

        def watch(router, _inputs, output):
            nonlocal normalised
            logits, scores, chosen = _three(router, output)
            if normalised is None:
                normalised = _normalised(router, logits, scores, chosen)
            if noise:
                draw = torch.empty_like(logits).normal_(generator=generator)
                logits = logits + noise * draw
                chosen = logits.topk(chosen.shape[-1]).indices
            if experts is not None:
                old = experts[:, :, layer].reshape(chosen.shape).long()
                chosen = torch.where(old == FREE, chosen, old)
            if layer == 0:
                routing.logits, routing.experts = [], []
            routing.logits.append(logits)
            routing.experts.append(chosen)
            if noise or experts is not None:
                weights = router_weights(logits, chosen, normalised)
                return logits, weights.to(scores.dtype), chosen

        return watch

    handles = [r.register_forward_hook(hook(i)) for i, r in enumerate(every)]
    try:
        yield routing
    finally:
        for handle in handles:
            handle.remove()


def router_weights(
    logits: Float[Tensor, "N E"], experts: Int[Tensor, "N k"], normalised: bool = True
) -> Float[Tensor, "N k"]:
    """g_i = e^{s_i} / Σ_{j in experts} e^{s_j}; not `normalised`: Σ over all experts.

    R3 (2510.11370): with `experts` frozen, the logits s still carry the gradient.
    """
    weights = logits.softmax(-1, dtype=torch.float).gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


def _three(router, output) -> tuple[Tensor, Tensor, Tensor]:
    """(logits, scores, indices), or a `ValueError` that says what came instead."""
    if isinstance(output, tuple) and len(output) == 3:
        logits, scores, chosen = output
        if logits.ndim == 2 and scores.shape == chosen.shape:
            return logits, scores, chosen
    raise ValueError(
        f"{type(router).__name__} does not return (logits, scores, indices) of shapes "
        "(N, E), (N, k), (N, k): its routing cannot be recorded"
    )


@torch.no_grad()
def _normalised(router, logits, scores, chosen) -> bool:
    """Which softmax this router's scores are, found by trying both."""
    for normalised in (True, False):
        again = router_weights(logits, chosen, normalised)
        if torch.allclose(again, scores.float(), atol=1e-2, rtol=1e-2):
            return normalised
    raise ValueError(
        f"the scores of {type(router).__name__} are not a softmax of its logits: they "
        "cannot be computed again for replayed experts"
    )


@guarded
def overlap(
    old: Int[Tensor, "... k"], new: Int[Tensor, "... k"]
) -> Float[Tensor, "..."]:
    """The share of a token's old experts that it still visits, from 0 to 1."""
    return (old[..., :, None] == new[..., None, :]).any(-1).float().mean(-1)


@guarded
def router_kl(
    old: Float[Tensor, "... E"], new: Float[Tensor, "... E"]
) -> Float[Tensor, "..."]:
    """KL(old ‖ new) between the routers' distributions, from their logits, nats."""
    p, q = wide(old).log_softmax(-1), wide(new).log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


@guarded
def router_shift(
    logp: Float[Tensor, "... layers k"],
    old_logp: Float[Tensor, "... layers k"],
    floor: Annotated[float, Field(gt=0, le=1)] = 0.7,
) -> Float[Tensor, "..."]:
    """RSPO's γ (2510.23027): how far a token's router has moved, as a weight ≤ 1.

        γ = max( exp(−(1/L) Σ_ℓ (1/K) Σ_k |log r_φ(e_k) − log r_φold(e_k)|), γ_min )

    over the K experts that the *old* policy activated in each of L layers. With its
    gradient: `shifted` detaches it.

    **Departures.** γ_min is not published; 0.7 is that of a public copy of the code.
    """
    drift = (logp - old_logp).abs().mean((-1, -2))
    return (-drift).exp().clamp(min=floor)


Placement = Literal["before_clip", "after_clip"]
PLACEMENTS = get_args(Placement)


@guarded
def shifted(
    old_logp: Float[Tensor, "B T"],
    weight: Shaped[Tensor, "B T"],
    mask: Mask,
    gamma: Float[Tensor, "B T"],
    placement: Placement = "before_clip",
    one_ratio: bool = True,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """RSPO's shift: the (old_logp, weight) that any loss is then called with.

    γ in (0, 1] multiplies each token's ratio `"before_clip"`, r ← γ r, which is
    log π_old ← log π_old − log γ; or `"after_clip"` the objective, which is the
    weight: by its token's γ, or, where a response has `one_ratio`
    (`Algorithm.one_ratio`), by the geometric mean of its tokens' γ. γ is a constant.

    Raises `ValueError` if γ cannot be a router shift.
    """
    gamma = torch.where(mask.bool(), gamma.detach(), 1.0)
    wrong = (gamma <= 0) | (gamma > 1 + 1e-6)
    if wrong.any():
        raise ValueError(
            f"gamma must lie in (0, 1], got {gamma[wrong][0].item():g}: it is exp of "
            "minus a drift, above a floor > 0"
        )
    shift = gamma.log()
    if placement == "before_clip":
        return old_logp - shift, weight
    if one_ratio:
        shift = sequence_log_ratio(shift, mask)[:, None]
    return old_logp, weight * shift.exp()


def load_balance(
    routing: Routing, real: Bool[Tensor, "B L"] | None = None
) -> Float[Tensor, ""]:
    """E Σ_e (share of visits to e) · (mean probability of e), layers pooled.

    Switch Transformer (2101.03961), Eq. 4–6, as `transformers` computes it: k if the
    experts are visited evenly, more if not. `real` leaves padding out.
    """
    probs = wide(torch.cat(routing.logits)).softmax(-1)
    visits = torch.zeros_like(probs).scatter(1, torch.cat(routing.experts), 1.0)
    if real is not None:
        keep = real.flatten().repeat(len(routing.logits))
        probs, visits = probs[keep], visits[keep]
    return probs.shape[-1] * (visits.mean(0) * probs.mean(0)).sum()


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
