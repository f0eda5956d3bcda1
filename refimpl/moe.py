"""Mixtures of experts: router weights, RSPO's shift, and records of routing.

In each sparse layer a *router* gives every token a distribution over E experts. The
token visits the k most probable ones, and their outputs are mixed with the *router
weights*. This choice is discrete: a small change of the parameters can send a token to
another expert, and then its log-prob jumps. One hook per router records or replays it:

    with routed(model) as routing:                       # record
    with routed(model, experts=recorded) as routing:     # replay
    with routed(model, noise=0.1, generator=g):          # imitate another engine

This works for every `transformers` model whose routers return (logits, scores, indices)
with softmax scores: Qwen3-MoE, Mixtral, OLMoE and others. Models with other routers
(with a sigmoid, for example) are not recorded, and train as dense models do. (B, L) are
the positions of `ids`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformers import PreTrainedModel

from refimpl.importance import Mask, sequence_log_ratio
from refimpl.models import at_least_float32
from refimpl.models import is_moe as is_moe
from refimpl.models import routers as routers
from refimpl.rollout import FREE, Rollout
from refimpl.validation import UserError


def router_weights(
    logits: Float[Tensor, "N E"], experts: Int[Tensor, "N k"], normalised: bool = True
) -> Float[Tensor, "N k"]:
    """g_i = e^{s_i} / Σ_{j in experts} e^{s_j}; not `normalised`: Σ_j over all E.

    As in R3 (2510.11370), the logits s carry a gradient even if `experts` are frozen.
    """
    weights = logits.softmax(-1, dtype=torch.float).gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


def overlap(
    old: Int[Tensor, "... k"], new: Int[Tensor, "... k"]
) -> Float[Tensor, "..."]:
    """Return the share of a token's old experts that it still visits, from 0 to 1."""
    return (old[..., :, None] == new[..., None, :]).any(-1).float().mean(-1)


def router_shift(
    logp: Float[Tensor, "... layers k"],
    old_logp: Float[Tensor, "... layers k"],
    floor: float = 0.7,
) -> Float[Tensor, "..."]:
    """RSPO's γ (2510.23027): a weight ≤ 1 that falls as a token's router moves away.

        γ = max( exp(−(1/L) Σ_ℓ (1/K) Σ_k |log r_φ(e_k) − log r_φold(e_k)|), γ_min )

    over the K experts that the *old* policy activated in each of L layers. The result
    has a gradient; `shifted` detaches it. The paper does not publish the smallest
    weight, γ_min; `floor` is that of a public copy of its code.
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
    """Apply RSPO's shift: return the (old_logp, weight) to call any loss with.

    `"before_clip"` multiplies each token's ratio by its γ in (0, 1], r ← γ r, by
    setting log π_old ← log π_old − log γ. `"after_clip"` multiplies the weight instead:
    by the token's γ, or, for methods with `one_ratio` per response
    (`Algorithm.one_ratio`), by the geometric mean of the response's γ. No gradient
    passes through γ.
    """
    if placement not in PLACEMENTS:
        allowed = " or ".join(map(repr, PLACEMENTS))
        raise UserError(f"placement must be {allowed}, got {placement!r}")
    shift = torch.where(mask.bool(), gamma.detach(), 1.0).log()
    if placement == "before_clip":
        return old_logp - shift, weight
    if one_ratio:
        shift = sequence_log_ratio(shift, mask)[:, None]
    return old_logp, weight * shift.exp()


# A model's routers in a forward pass


@dataclass
class Routing:
    """The record of the last forward pass, with one list entry per layer.

    `logits`: (N, E), with their graph; `experts`: (N, k), the visited ones. N is the
    number of tokens in the pass, batch × positions. `passes`: the records of all passes
    in order.
    """

    logits: list[Float[Tensor, "N E"]] = field(default_factory=list)
    experts: list[Int[Tensor, "N k"]] = field(default_factory=list)
    passes: "list[Routing]" = field(default_factory=list)

    def visited(self, batch: int) -> Int[Tensor, "B L layers k"]:
        """Return the visited experts of all layers as one int16 tensor."""
        return torch.stack(self.experts, 1).to(torch.int16).unflatten(0, (batch, -1))

    def favoured(self, batch: int) -> Int[Tensor, "B L layers k"]:
        """Return the top-k experts by the logits, even where others were replayed."""
        k = self.experts[0].shape[-1]
        top = torch.stack(self.logits, 1).topk(k).indices
        return top.to(torch.int16).unflatten(0, (batch, -1))

    def log_probs(
        self, experts: Int[Tensor, "B L layers k"]
    ) -> Float[Tensor, "B L layers k"]:
        """Compute router log-probs of `experts`, nats; 0 where an expert is FREE."""
        logits = at_least_float32(torch.stack(self.logits, 1))  # (N, layers, E)
        logp = logits.log_softmax(-1).unflatten(0, experts.shape[:2])
        logp = logp.gather(-1, experts.long().clamp(min=0))  # FREE is no index
        return torch.where(experts == FREE, 0.0, logp)

    def visits(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return the visited experts and their log-probs, (B, L, layers, k) each."""
        experts = self.visited(batch)
        return experts, self.log_probs(experts)


@torch.no_grad()
def can_be_recorded(model: PreTrainedModel, settings: Sequence[str] = ()) -> bool:
    """True if the model's routing can be recorded; tested on one token.

    `settings` names the settings that need a record: if there are any and routing
    cannot be recorded, raises `UserError` instead of returning False.
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
    """Record every forward pass of `model` inside the block.

    **Arguments:**

    - `experts`: visit these instead of the router's own choice (routing replay).
      Only the *choice* is frozen. The router weights of the visited experts come from
      the live logits, so the router keeps its gradient.
    - `noise`: standard deviation of normal noise on the router logits, drawn from
      `generator`. It imitates an inference engine with slightly different numerics.

    Raises `UserError` if the model has no router, or one of an unsupported kind.
    """
    if not (modules := routers(model)):
        raise UserError(
            f"{type(model).__name__} has no router: replay, router shift and router "
            "noise need a mixture of experts, for example the preset 'tiny-moe'"
        )
    routing, normalised = Routing(), dict[int, bool]()  # see `_normalised`

    def watch(layer: int, router: nn.Module, _inputs, output):
        if layer not in normalised:
            normalised[layer] = _normalised(router, output)
        logits, scores, chosen = output
        if noise:
            draw = torch.empty_like(logits).normal_(generator=generator)
            logits = logits + noise * draw
            chosen = logits.topk(chosen.shape[-1]).indices
        if experts is not None:  # the router chooses where the record has none
            old = experts[:, :, layer].reshape(chosen.shape).long()
            chosen = torch.where(old == FREE, chosen, old)
        if layer == 0:  # a new pass
            routing.logits, routing.experts = [], []
            routing.passes.append(Routing(routing.logits, routing.experts))
        routing.logits.append(logits)
        routing.experts.append(chosen)
        if not noise and experts is None:
            return output
        weights = router_weights(logits, chosen, normalised[layer])
        return logits, weights.to(scores.dtype), chosen

    with contextlib.ExitStack() as hooks:
        for layer, router in enumerate(modules):
            hook = router.register_forward_hook(partial(watch, layer))
            hooks.enter_context(hook)
        yield routing


@torch.no_grad()
def _normalised(router: nn.Module, output) -> bool:
    """True if the scores are a softmax over the chosen experts, False if over all.
    Raises `UserError` if they are neither."""
    if isinstance(output, tuple) and len(output) == 3 and output[0].ndim == 2:
        logits, scores, chosen = output
        for normalised in (True, False):
            again, near = router_weights(logits, chosen, normalised), scores.float()
            same = again.shape == near.shape
            if same and torch.allclose(again, near, atol=1e-2, rtol=1e-2):
                return normalised
    raise UserError(
        f"{type(router).__name__} does not return (logits, scores, indices) whose "
        "scores are a softmax of the logits: its routing cannot be recorded"
    )


# The routing of a rollout: when sampled, in π_old's pass, and now

BALANCE = 1e-3
"""Weight of the load-balancing loss, as in Qwen3-MoE; the warm start uses it, too."""


def recorded(rollout: Rollout, routing: Routing) -> Rollout:
    """Add to a new rollout the experts and router log-probs of the passes that sampled
    it. Positions that no pass has read get FREE as experts, and log-probs of 0.

    The first pass read the left-padded prompts. The t-th pass after it read the t-th
    token of each response that was still unfinished, in the order of the rows.
    """
    experts, logp = routing.passes[0].visits(int(rollout.group.max()) + 1)
    later = [p.visits(len(p.experts[0])) for p in routing.passes[1:]]
    width, length = experts.shape[1], rollout.prompt_length[:, None]
    columns = torch.arange(rollout.ids.shape[1], device=length.device)
    in_prompt = (columns < length)[:, :, None, None]
    where = rollout.group[:, None], (columns + width - length).clamp(max=width - 1)
    experts = torch.where(in_prompt, experts[where], FREE)
    logp = torch.where(in_prompt, logp[where], 0.0)
    if later:
        t, row = rollout.mask[:, 1:].T.nonzero(as_tuple=True)
        at = rollout.prompt_length[row] + t
        experts[row, at] = torch.cat([visited[:, 0] for visited, _ in later])
        logp[row, at] = torch.cat([of_visited[:, 0] for _, of_visited in later])
    return replace(rollout, experts=experts, router_logp=logp)


def visited_again(
    rollout: Rollout, experts: Tensor, router_logp: Tensor
) -> tuple[Rollout, Float[Tensor, "B T"]]:
    """Replace the recorded experts by those of another pass over the same rollout.

    Also returns the share of each token's experts that changed, 0 outside the mask.
    """
    unread = rollout.experts == FREE  # positions that no pass has read stay so
    experts = experts.masked_fill(unread, FREE)
    router_logp = router_logp.masked_fill(unread, 0.0)
    change = (1 - overlap(rollout.experts, experts)).mean(-1)
    change = change.gather(1, rollout.positions - 1) * rollout.mask
    return replace(rollout, experts=experts, router_logp=router_logp), change


def load_balance(
    routing: Routing, real: Bool[Tensor, "B L"] | None = None
) -> Float[Tensor, ""]:
    """E Σ_e (share of visits to e) · (mean probability of e), pooled over layers.

    This is Eq. 4–6 of Switch Transformer (2101.03961) as `transformers` computes it: k
    if the experts are visited evenly, more if not. Tokens outside `real` do not count.
    """
    probs = at_least_float32(torch.cat(routing.logits)).softmax(-1)
    visits = torch.zeros_like(probs).scatter(1, torch.cat(routing.experts), 1.0)
    if real is not None:
        keep = real.flatten().repeat(len(routing.logits))
        probs, visits = probs[keep], visits[keep]
    return probs.shape[-1] * (visits.mean(0) * probs.mean(0)).sum()


@dataclass(frozen=True, eq=False)
class Drift:
    """The routers of the last pass over `rollout`, compared with its record."""

    rollout: Rollout
    routing: Routing

    @cached_property
    def gamma(self) -> Float[Tensor, "B T"]:
        """RSPO's weight where each token's log-prob is computed, with its gradient."""
        logp = self.routing.log_probs(self.rollout.experts)
        return self.at_tokens(router_shift(logp, self.rollout.router_logp))

    @property
    def expert_change(self) -> Float[Tensor, "B T"]:
        """The share of recorded experts that the router would no longer choose."""
        favoured = self.routing.favoured(len(self.rollout))
        return self.at_tokens(1 - overlap(self.rollout.experts, favoured).mean(-1))

    @property
    def balance(self) -> Float[Tensor, ""]:
        """The load-balancing loss of the pass."""
        ids, end = self.rollout.ids, self.rollout.end[:, None]
        columns = torch.arange(ids.shape[1], device=ids.device)
        return load_balance(self.routing, columns < end)

    def at_tokens(self, x: Float[Tensor, "B L"]) -> Float[Tensor, "B T"]:
        return x.gather(1, self.rollout.positions - 1)
