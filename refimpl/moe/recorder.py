"""Record or replay the routers of a mixture of experts, with one hook per router.

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
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from refimpl.models import at_least_float32, routers
from refimpl.moe.shift import overlap, router_shift, router_weights
from refimpl.rollout import FREE, Rollout
from refimpl.validation import UserError


class Visits(NamedTuple):
    """The experts that a pass visited, and the router's log-probs of them in nats."""

    experts: Int[Tensor, "B L layers k"]
    router_logp: Float[Tensor, "B L layers k"]


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

    def visits(self, batch: int) -> Visits:
        """Return the visited experts with their log-probs."""
        experts = self.visited(batch)
        return Visits(experts, self.log_probs(experts))


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
    recorder = Recorder(experts, noise, generator)
    hooks = [
        router.register_forward_hook(partial(recorder.watch, layer))
        for layer, router in enumerate(modules)
    ]
    try:
        yield recorder.routing
    finally:
        for hook in hooks:
            hook.remove()


@dataclass
class Recorder:
    """The hook on each router: adds noise or replays experts if asked, then records.

    The first three fields are arguments of `routed`.
    """

    experts: Int[Tensor, "B L layers k"] | None
    noise: float
    generator: torch.Generator | None
    routing: Routing = field(default_factory=Routing)
    normalised: dict[int, bool] = field(default_factory=dict)  # see `_normalised`

    def watch(self, layer: int, router: nn.Module, _inputs, output):
        """Record a router's output, and return it with noise or replayed experts."""
        if layer not in self.normalised:
            self.normalised[layer] = _normalised(router, output)
        logits, scores, chosen = output
        if self.noise:
            logits, chosen = self.disturbed(logits, chosen)
        if self.experts is not None:  # the router chooses where the record has none
            old = self.experts[:, :, layer].reshape(chosen.shape).long()
            chosen = torch.where(old == FREE, chosen, old)
        self.record(layer, logits, chosen)
        if not self.noise and self.experts is None:
            return output
        weights = router_weights(logits, chosen, self.normalised[layer])
        return logits, weights.to(scores.dtype), chosen

    def disturbed(self, logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Add noise to the logits; return them with their top-k experts."""
        draw = torch.empty_like(logits).normal_(generator=self.generator)
        logits = logits + self.noise * draw
        return logits, logits.topk(chosen.shape[-1]).indices

    def record(self, layer: int, logits: Tensor, chosen: Tensor) -> None:
        """Append a layer to the record; layer 0 begins a new pass."""
        routing = self.routing
        if layer == 0:
            routing.logits, routing.experts = [], []
            routing.passes.append(Routing(routing.logits, routing.experts))
        routing.logits.append(logits)
        routing.experts.append(chosen)


@torch.no_grad()
def _normalised(router: nn.Module, output) -> bool:
    """True if the scores are a softmax over the chosen experts, False if over all.

    Computes both and compares. Raises `UserError` if neither agrees.
    """
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


# The routing of a rollout: when sampled, in π_old's pass, and now

BALANCE = 1e-3
"""Weight of the load-balancing loss, as in Qwen3-MoE; the warm start uses it, too."""


def recorded(rollout: Rollout, routing: Routing) -> Rollout:
    """Add to a new rollout the experts and router log-probs of the passes that sampled
    it. Positions that no pass has read get FREE as experts, and log-probs of 0.

    The first pass read the left-padded prompts. The t-th pass after it read the t-th
    token of each response that was still unfinished, in the order of the rows.
    """
    prompts = routing.passes[0].visits(int(rollout.group.max()) + 1)
    later = [p.visits(len(p.experts[0])) for p in routing.passes[1:]]
    width, length = prompts.experts.shape[1], rollout.prompt_length[:, None]
    columns = torch.arange(rollout.ids.shape[1], device=length.device)
    source = (columns + width - length).clamp(max=width - 1)
    in_prompt = (columns < length)[:, :, None, None]
    where = rollout.group[:, None], source
    experts = torch.where(in_prompt, prompts.experts[where], FREE)
    logp = torch.where(in_prompt, prompts.router_logp[where], 0.0)
    if later:
        t, row = rollout.mask[:, 1:].T.nonzero(as_tuple=True)
        at = rollout.prompt_length[row] + t
        experts[row, at] = torch.cat([v.experts[:, 0] for v in later])
        logp[row, at] = torch.cat([v.router_logp[:, 0] for v in later])
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
        columns = torch.arange(
            self.rollout.ids.shape[1], device=self.rollout.ids.device
        )
        return load_balance(self.routing, columns < self.rollout.end[:, None])

    def at_tokens(self, x: Float[Tensor, "B L"]) -> Float[Tensor, "B T"]:
        return x.gather(1, self.rollout.positions - 1)
