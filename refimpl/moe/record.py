"""Which experts a rollout's tokens visited: when sampled, in π_old's pass, and now."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from refimpl.models import at_least_float32
from refimpl.moe.recorder import Routing
from refimpl.moe.shift import overlap, router_shift
from refimpl.rollout import FREE, Rollout

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
