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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformers import PreTrainedModel

from refimpl.batch import FREE, Rollout, widened
from refimpl.checks import UserError, sentence
from refimpl.importance import Mask, sequence_log_ratio
from refimpl.models import wide


class Visits(NamedTuple):
    """The experts of a pass, and the router's log-probs of them, nats."""

    experts: Int[Tensor, "B L layers k"]
    logp: Float[Tensor, "B L layers k"]


@dataclass
class Routing:
    """What the routers did in the last forward pass, a list entry for each layer.

    `logits`: (N, E), with their graph; `experts`: (N, k), the ones that were visited.
    N is the number of tokens that went through, batch × positions. `passes`: all of
    them, first to last.
    """

    logits: list[Float[Tensor, "N E"]] = field(default_factory=list)
    experts: list[Int[Tensor, "N k"]] = field(default_factory=list)
    passes: "list[Routing]" = field(default_factory=list)

    def visited(self, batch: int) -> Int[Tensor, "B L layers k"]:
        """The experts as one tensor of small integers."""
        return torch.stack(self.experts, 1).to(torch.int16).unflatten(0, (batch, -1))

    def favoured(self, batch: int) -> Int[Tensor, "B L layers k"]:
        """The experts that the routers favour, even where others were replayed."""
        k = self.experts[0].shape[-1]
        top = torch.stack(self.logits, 1).topk(k).indices
        return top.to(torch.int16).unflatten(0, (batch, -1))

    def log_probs(
        self, experts: Int[Tensor, "B L layers k"]
    ) -> Float[Tensor, "B L layers k"]:
        """log of the router's probability of each of `experts`, nats; 0 where FREE."""
        every = wide(torch.stack(self.logits, 1)).log_softmax(-1)  # (N, layers, E)
        every = every.unflatten(0, experts.shape[:2])
        logp = every.gather(-1, experts.long().clamp(min=0))
        return torch.where(experts == FREE, 0.0, logp)

    def visits(self, batch: int) -> Visits:
        """The experts that were visited, with their log-probs."""
        experts = self.visited(batch)
        return Visits(experts, self.log_probs(experts))


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers, first layer first; a dense model has none."""
    return [m for m in model.modules() if type(m).__name__.endswith("Router")]


def is_moe(model: nn.Module) -> bool:
    return bool(routers(model))


@torch.no_grad()
def can_be_recorded(model: PreTrainedModel, settings: Sequence[str] = ()) -> bool:
    """Whether routing can be recorded, tried on one token.

    Raises `UserError` if one of these settings needs that, and it cannot.
    """
    try:
        with routed(model):
            model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
    except UserError as error:
        if settings:
            raise UserError(f"{', '.join(settings)}: {error}") from error
        return False
    return True


@contextlib.contextmanager
def routed(
    model: nn.Module,
    *,
    experts: Int[Tensor, "B L layers k"] | None = None,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> Iterator[Routing]:
    """Inside the block, every forward pass of `model` is recorded.

    **Arguments:**

    - `experts`: visit these instead of the router's own choice (routing replay).
      Only the *choice* is frozen. The router weights of the visited experts come from
      the live logits, so the router keeps its gradient.
    - `noise`: standard deviation of normal noise on the router logits, drawn from
      `generator`: a stand-in for an inference engine whose numbers differ.

    Raises `UserError` if the model has no router, or one of another kind.
    """
    routing = Routing()
    if not (every := routers(model)):
        raise UserError(
            f"{type(model).__name__} has no router: replay, router shift and router "
            "noise need a mixture of experts, for example the preset 'tiny-moe'"
        )

    normalised: dict[int, bool] = {}  # which softmax its scores are

    def watch(layer: int, router: nn.Module, _inputs, output):
        if layer not in normalised:
            normalised[layer] = _normalised(router, output)
        logits, scores, chosen = output
        if noise:
            draw = torch.empty_like(logits).normal_(generator=generator)
            logits = logits + noise * draw
            chosen = logits.topk(chosen.shape[-1]).indices
        if experts is not None:
            old = experts[:, :, layer].reshape(chosen.shape).long()
            chosen = torch.where(old == FREE, chosen, old)
        if layer == 0:
            routing.logits, routing.experts = [], []
            routing.passes.append(Routing(routing.logits, routing.experts))
        routing.logits.append(logits)
        routing.experts.append(chosen)
        if noise or experts is not None:
            weights = router_weights(logits, chosen, normalised[layer])
            return logits, weights.to(scores.dtype), chosen

    hooks = [r.register_forward_hook(partial(watch, i)) for i, r in enumerate(every)]
    try:
        yield routing
    finally:
        for hook in hooks:
            hook.remove()


def recorded(rollout: Rollout, routing: Routing) -> Rollout:
    """A fresh rollout with the experts and router log-probs of the passes that sampled
    it; FREE, and 0, where no token was read.

    The first pass read the left-padded prompts; the t-th after it the t-th token of
    every response that went on, in the order of the rows.
    """
    prompts = routing.passes[0].visits(int(rollout.group.max()) + 1)
    later = [p.visits(len(p.experts[0])) for p in routing.passes[1:]]
    width, length = prompts.experts.shape[1], rollout.prompt_length[:, None]
    columns = torch.arange(rollout.ids.shape[1], device=length.device)
    source = (columns + width - length).clamp(max=width - 1)
    in_prompt = (columns < length)[:, :, None, None]
    where = rollout.group[:, None], source
    experts = torch.where(in_prompt, prompts.experts[where], FREE)
    logp = torch.where(in_prompt, prompts.logp[where], 0.0)
    if later:
        t, row = rollout.mask[:, 1:].T.nonzero(as_tuple=True)
        at = rollout.prompt_length[row] + t
        experts[row, at] = torch.cat([v.experts[:, 0] for v in later])
        logp[row, at] = torch.cat([v.logp[:, 0] for v in later])
    return replace(rollout, experts=experts, router_logp=logp)


def visited_again(
    rollout: Rollout, visits: Sequence[Visits]
) -> tuple[Rollout, Float[Tensor, "B T"]]:
    """The rollout with the experts of another pass over it, given by parts; and the
    share of each token's experts that this changed, 0 outside the mask."""
    width, unread = rollout.ids.shape[1], rollout.experts == FREE
    experts = torch.cat([widened(v.experts, width) for v in visits])
    logp = torch.cat([widened(v.logp, width) for v in visits])
    experts = experts.masked_fill(unread, FREE)
    change = (1 - overlap(rollout.experts, experts)).mean(-1)
    change = change.gather(1, rollout.positions - 1) * rollout.mask
    logp = logp.masked_fill(unread, 0.0)
    return replace(rollout, experts=experts, router_logp=logp), change


def router_weights(
    logits: Float[Tensor, "N E"], experts: Int[Tensor, "N k"], normalised: bool = True
) -> Float[Tensor, "N k"]:
    """g_i = e^{s_i} / Σ_{j in experts} e^{s_j}; not `normalised`: Σ over all experts.

    R3 (2510.11370): with `experts` frozen, the logits s still carry the gradient.
    """
    weights = logits.softmax(-1, dtype=torch.float).gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


@torch.no_grad()
def _normalised(router: nn.Module, output) -> bool:
    """Which softmax this router's scores are, found by trying both."""
    if isinstance(output, tuple) and len(output) == 3 and output[0].ndim == 2:
        logits, scores, chosen = output
        for normalised in (True, False):
            again = router_weights(logits, chosen, normalised)
            if again.shape == scores.shape and torch.allclose(
                again, scores.float(), atol=1e-2, rtol=1e-2
            ):
                return normalised
    raise UserError(
        f"{type(router).__name__} does not return (logits, scores, indices) whose "
        "scores are a softmax of the logits: its routing cannot be recorded"
    )


def overlap(
    old: Int[Tensor, "... k"], new: Int[Tensor, "... k"]
) -> Float[Tensor, "..."]:
    """The share of a token's old experts that it still visits, from 0 to 1."""
    return (old[..., :, None] == new[..., None, :]).any(-1).float().mean(-1)


GAMMA_MIN = 0.7
"""The least weight that a token keeps. Not published; that of a public copy of the
paper's code."""


def router_shift(
    logp: Float[Tensor, "... layers k"],
    old_logp: Float[Tensor, "... layers k"],
    floor: float = GAMMA_MIN,
) -> Float[Tensor, "..."]:
    """RSPO's γ (2510.23027): how far a token's router has moved, as a weight ≤ 1.

        γ = max( exp(−(1/L) Σ_ℓ (1/K) Σ_k |log r_φ(e_k) − log r_φold(e_k)|), γ_min )

    over the K experts that the *old* policy activated in each of L layers. With its
    gradient: `shifted` detaches it.
    """
    distance = (logp - old_logp).abs().mean((-1, -2))
    return (-distance).exp().clamp(min=floor)


Placement = Literal["before_clip", "after_clip"]
PLACEMENTS = get_args(Placement)


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
    """
    if placement not in PLACEMENTS:
        raise UserError(sentence("placement", Placement, placement))
    shift = torch.where(mask.bool(), gamma.detach(), 1.0).log()
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
    experts are visited evenly, more if not. `real` leaves the other tokens out.
    """
    probs = wide(torch.cat(routing.logits)).softmax(-1)
    visits = torch.zeros_like(probs).scatter(1, torch.cat(routing.experts), 1.0)
    if real is not None:
        keep = real.flatten().repeat(len(routing.logits))
        probs, visits = probs[keep], visits[keep]
    return probs.shape[-1] * (visits.mean(0) * probs.mean(0)).sum()


class Drift(NamedTuple):
    """How far a pass's routers are from those on a rollout's record.

    `gamma`: RSPO's weight at the position where each token's log-prob arises, (B, T),
    with its gradient; `expert_change`: the share of experts that the router would now
    choose otherwise, (B, T); `balance`: the load-balancing loss of the pass.
    """

    gamma: Float[Tensor, "B T"]
    expert_change: Float[Tensor, "B T"]
    balance: Float[Tensor, ""]


def drift(rollout: Rollout, routing: Routing) -> Drift:
    """The routers of the last pass over `rollout` against its record."""
    change = 1 - overlap(rollout.experts, routing.favoured(len(rollout))).mean(-1)
    gamma = router_shift(routing.log_probs(rollout.experts), rollout.router_logp)
    before = rollout.positions - 1
    columns = torch.arange(rollout.ids.shape[1], device=gamma.device)
    balance = load_balance(routing, columns < rollout.end[:, None])
    return Drift(gamma.gather(1, before), change.gather(1, before), balance)
