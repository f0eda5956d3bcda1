"""K optimiser steps on one batch: log-probs → loss → gradient → step."""

from collections.abc import Iterator
from dataclasses import fields, replace

import torch
from torch import Tensor

from refimpl import dice, moe
from refimpl.algorithms import value_loss
from refimpl.drift import drift
from refimpl.importance import largest_deviation, truncated_weight
from refimpl.kl import ESTIMATORS
from refimpl.models import weights
from refimpl.normalisers import token_mean as mean_over_tokens
from refimpl.rollout import Rollout
from refimpl.run import Batch, Run, at_tokens, mean, score_with, token_mean
from refimpl.scoring import values

MAX_QUANTILE_INPUT = 2**24
"""What `torch.quantile` takes; of more log-ratios a part is measured."""


def update(run: Run, batch: Batch, step: int) -> dict[str, float]:
    """K optimiser steps over shuffled mini-batches of whole groups."""
    config, rollout = run.config, batch.rollout
    generator = dice.generator(dice.seed_for(config.seed, step, "shuffle"))
    totals: list[dict] = []
    log_ratios: list[Tensor] = []
    start = weights(run.model) if config.measure_drift else None
    for _ in range(config.epochs):
        groups = rollout.group.unique().cpu()
        order = groups[torch.randperm(len(groups), generator=generator)]
        for part in order.tensor_split(min(config.minibatches, len(order))):
            chosen = torch.isin(rollout.group.cpu(), part).nonzero()[:, 0]
            done = step * config.updates_per_rollout + len(totals)
            totals.append(_one_update(run, batch, chosen, done, log_ratios))
    z = torch.cat(log_ratios)
    z = z[:: 1 + len(z) // MAX_QUANTILE_INPUT]
    low, middle, high = torch.quantile(z, torch.tensor([0.01, 0.5, 0.99])).tolist()
    metrics = {name: mean([t[name] for t in totals]) for name in totals[0]}
    metrics["ratio/max_deviation"] = max(t["ratio/max_deviation"] for t in totals)
    quantiles = {"log_ratio/q01": low, "log_ratio/q50": middle, "log_ratio/q99": high}
    if start is not None:
        metrics |= drift(run, batch, start)
    return {**metrics, **quantiles}


def _one_update(run: Run, batch: Batch, chosen: Tensor, done: int, log_ratios) -> dict:
    """Accumulate the gradient over micro-batches, then step once.

    Rows without a gradient are left out of the passes, never out of the counts.
    """
    config = run.config
    share = config.rate(done)
    for settings in run.optimizer.param_groups:
        settings["lr"] = settings["peak"] * share
    batch, tokens = _weighed(run, batch, chosen)
    total: dict[str, float] = {}
    passed = 0.0  # share of the tokens that went through the model
    for part in _micro_batches(run, batch, _with_gradient(run, batch, chosen)):
        with run.recomputed():
            loss, metrics, z = _loss(run, part, tokens)
        loss.backward()
        weight = part.mask.sum().item() / max(1.0, tokens)
        passed += weight
        for name, value in metrics.items():
            if name == "ratio/max_deviation":
                total[name] = max(total.get(name, 0.0), value)
            elif name in ("loss", "value_loss"):  # already shares of the whole
                total[name] = total.get(name, 0.0) + value
            else:
                total[name] = total.get(name, 0.0) + weight * value
        log_ratios.append(z)
    norm = _clip_gradient(run.model, "policy", config.max_grad_norm, done)
    if run.critic is not None:
        _clip_gradient(run.critic, "critic", config.max_grad_norm, done)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    for name in total:
        if name.startswith("router/"):  # means over what was passed
            total[name] /= passed or 1.0
    rate = run.optimizer.param_groups[0]["lr"]
    return {**total, "grad_norm": norm.item(), "learning_rate": rate}


def _clip_gradient(model, name: str, limit: float, done: int) -> Tensor:
    """The gradient's norm before clipping; `FloatingPointError` if it is not finite."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    if not norm.isfinite():  # the weights are still those of the last good step
        raise FloatingPointError(
            f"update {done + 1}: the norm of the {name}'s gradient is {norm.item()}, "
            "training has diverged; lower the learning rate, or clip ratios more "
            "tightly (chapter 11 goes from symptoms to causes)"
        )
    return norm


def _weighed(run: Run, batch: Batch, chosen: Tensor) -> tuple[Batch, float]:
    """`batch` with the normaliser of the mini-batch `chosen`; its number of tokens.

    The rows that are not chosen weigh nothing.
    """
    chosen = chosen.to(batch.mask.device)
    mask, group = batch.mask[chosen].to(batch.old_logp), batch.rollout.group[chosen]
    weight = torch.zeros_like(batch.old_logp)
    weight[chosen] = run.config.weight(run.algorithm, mask, group)
    if run.critic is not None:
        of_values = torch.zeros_like(weight)
        of_values[chosen] = mean_over_tokens(mask)
        batch = replace(batch, value_weight=of_values)
    return replace(batch, weight=weight), mask.sum().item()


def _with_gradient(run: Run, batch: Batch, chosen: Tensor) -> Tensor:
    """The groups of `chosen` that move a weight; at least a row, so a step is taken.

    A group of equal rewards has advantage 0 throughout, and mostly no gradient then.
    Once a policy is good that is most of a rollout. (A mixture of experts balances its
    load over the rest.)
    """
    if run.acts_on_every_token:
        return chosen
    group = batch.rollout.group.cpu()
    moving = group[(batch.advantages * batch.mask != 0).any(-1).cpu()]
    kept = chosen[torch.isin(group[chosen], moving)]
    return kept if len(kept) else chosen[:1]


def _micro_batches(run: Run, batch: Batch, chosen: Tensor) -> Iterator[Batch]:
    """Slices of the mini-batch, sorted by length so that little of each is padding.

    Where prompts are shared, groups stay together; the longest is the length of all.
    """
    rollout = batch.rollout
    length = rollout.end
    if run.share_prompts:
        of_row = rollout.group.unique(return_inverse=True)[1]
        longest = torch.zeros_like(length).scatter_reduce(0, of_row, length, "amax")
        length = longest[of_row] * len(rollout) + of_row
    chosen = chosen[length[chosen.to(length.device)].cpu().argsort(stable=True)]
    for rows in chosen.split(run.config.micro_batch_size):
        rows = rows.to(rollout.ids.device)
        part = rollout.rows(rows)
        width = part.mask.shape[1]
        rest = {
            f.name: None
            if getattr(batch, f.name) is None
            else getattr(batch, f.name)[rows, :width]
            for f in fields(Batch)
            if f.name != "rollout"
        }
        yield Batch(part, **rest)


def _loss(run: Run, part: Batch, tokens: float) -> tuple[Tensor, dict, Tensor]:
    """Policy loss + β KL − c₂ entropy (+ value loss): this micro-batch's share."""
    config, rollout, mask = run.config, part.rollout, part.mask
    with run.routed(rollout.experts if config.replay else None) as routing:
        logp, entropy = score_with(run, run.model, rollout)
    old_logp, weight = part.old_logp, part.weight
    if config.max_rollout_weight is not None:
        weight = weight * truncated_weight(
            old_logp, rollout.logp, mask, config.max_rollout_weight
        )
    gamma, balance, routers = _routers(run, rollout, routing)
    shifted_logp = logp
    if config.router_shift:
        old_logp, weight = moe.shifted(
            old_logp, weight, mask, gamma, config.placement, run.algorithm.one_ratio
        )
        if not config.detach_shift:  # no change in value, but γ's own gradient
            shifted_logp = logp + (gamma.log() - gamma.log().detach()) * mask
    result = run.algorithm.policy_loss(
        shifted_logp, old_logp, part.advantages, mask, weight, **config.hyperparameters
    )
    share = mask.sum() / max(1.0, tokens)
    loss = result.loss + config.router_aux_loss * share * balance
    if part.ref_logp is not None and config.kl_in == "loss":
        kl = ESTIMATORS[config.kl_estimator](logp, part.ref_logp, part.old_logp)
        loss = loss + config.beta * (kl * part.weight).sum()
    if config.entropy_bonus:
        loss = loss - config.entropy_bonus * (entropy * part.weight).sum()
    metrics = {"loss": loss.item()}
    if run.critic is not None:
        with run.precision():
            predicted = values(run.critic, rollout)
        of_values = value_loss(
            predicted,
            part.old_values,
            part.targets,
            mask,
            part.value_weight,
            epsilon=config.value_clip,
        )
        metrics["value_loss"] = of_values.item()
        loss = loss + of_values
    metrics |= routers | result.metrics  # of the ratio itself, without γ:
    metrics["ratio/max_deviation"] = largest_deviation(logp, part.old_logp, mask)
    z = (logp.detach() - part.old_logp)[rollout.mask.bool()].float().cpu()
    return loss, metrics, z


def _routers(
    run: Run, rollout: Rollout, routing: moe.Routing | None
) -> tuple[Tensor | None, Tensor | float, dict]:
    """γ, the load-balancing loss, metrics: nothing if the model is dense."""
    if routing is None:
        return None, 0.0, {}
    change = 1 - moe.overlap(rollout.experts, routing.chosen(len(rollout))).mean(-1)
    drift = moe.router_shift(
        routing.log_probs(rollout.experts),
        rollout.router_logp,
        run.config.router_shift_floor,
    )
    gamma = drift.gather(1, rollout.positions - 1)
    columns = torch.arange(rollout.ids.shape[1], device=gamma.device)
    balance = moe.load_balance(routing, columns < rollout.end[:, None])
    metrics = {
        "router/expert_change": at_tokens(change, rollout),
        "router/shift": token_mean(gamma * rollout.mask, rollout.mask),
        "router/load_balance": balance.item(),
    }
    return gamma, balance, metrics
