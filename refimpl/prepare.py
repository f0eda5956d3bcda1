"""From what a user hands in to a `Run`: all that can be asked is asked here, once."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from refimpl import algorithms, corrections, logprobs, models
from refimpl.algorithms import Algorithm
from refimpl.config import TrainConfig
from refimpl.descent import optimizer
from refimpl.history import History
from refimpl.loss_terms import corrections_of, terms_of
from refimpl.models import Model
from refimpl.moe import can_be_recorded, is_moe
from refimpl.normalisers import NORMALISERS
from refimpl.rewards import check_rows
from refimpl.rollout import weigh
from refimpl.run import Run
from refimpl.samplers import sampler_of
from refimpl.sampling import encode
from refimpl.starts import warm_start
from refimpl.tasks import Arithmetic
from refimpl.tasks.rows import rows_of
from refimpl.validation import UserError, guarded, refuse_unknown, shown


@guarded
def prepare(
    algorithm: str | Algorithm,
    config: TrainConfig | None = None,
    model: Model | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
    log_probs: Callable = logprobs.log_probs,
) -> Run:
    """Check everything that can be checked, then build the run (see `train`)."""
    method = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    task = Arithmetic() if task is None else task
    config, hyperparameters = check_fit(config or TrainConfig(), method)
    rows = rows_of(task, "sample", config.prompts_per_rollout)
    if not (callable(task.habit) and isinstance(task.habits, Collection)):
        raise UserError(
            "task.habit must be a function f(completion), and task.habits a list of "
            f"what it returns, got {shown(task.habit)} and {shown(task.habits)}"
        )
    if (model is None) != (tokenizer is None):
        raise UserError("give model and tokenizer together, or neither")
    device = models.pick_device(config.device)
    if model is None:
        model, tokenizer, _ = warm_start()
    rows += rows_of(task, "held_out", 8)
    reward = task.reward if reward is None else reward
    check_rows(reward, rows)
    prompts = [row["prompt"] for row in rows]
    encode(model, tokenizer, prompts, config.max_new_tokens)  # raises on a bad one
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    model = models.trainable_copy(model).to(device, dtype)
    if is_moe(model) and dtype == torch.float64:
        model.set_experts_implementation("eager")  # the fused one has no float64
    with models.one_thread(model):
        logprobs.check_sampling(model)
        routers_known = can_be_recorded(model, config.needs_moe)
    critic = models.make_critic(model) if method.critic else None
    reference = models.frozen_copy(model) if config.beta > 0 else None
    run = Run(
        algorithm=method,
        config=config,
        hyperparameters=hyperparameters,
        weight=partial(weigh, averaging(config, method), config.longest),
        tokenizer=tokenizer,
        task=task,
        reward=reward,
        model=model,
        critic=critic,
        reference=reference,
        sampler=sampler_of(model, config, routers_known),
        log_probs=log_probs,
        optimizer=optimizer(model, critic, config),
        history=History(method.name, model=model),
        routers_known=routers_known,
        acts_everywhere=method.acts_without_advantage(**hyperparameters),
        by_group=getattr(log_probs, "by_group", False),
    )
    run.terms = terms_of(config, routers_known, run.values if critic else None)
    run.corrections = corrections_of(config, method.one_ratio)
    # The load balance alone is content with the rows that are passed anyway.
    run.acts_everywhere |= len(run.terms) > run.routers_known
    return run


def check_fit(config: TrainConfig, method: Algorithm) -> tuple[TrainConfig, dict]:
    """The settings as `method`'s paper completes them, and the hyperparameters.

    Raises `UserError` if the method cannot run like this.
    """
    refuse_unknown(f"{method.name}.training", method.training, vars(config))
    config = config.completed(method.training)
    if method.anchor == "sampler":
        config = replace(config, trust_sampler=True)
    hyperparameters = method.check_hyperparameters(config.hyperparameters)
    for name, (acts, without) in NEEDS.items():
        changed = getattr(config, name) != getattr(TrainConfig(), name)
        if changed and not acts(config, method):
            raise UserError(f"{name} has no effect without {without}; leave it off")
    check_sizes(config, method)
    # A method may make its ratio optional, by a hyperparameter `correct`.
    given = {"correct": True, **method.defaults, **hyperparameters}
    check_ratio(config, method, given["correct"])
    return config, hyperparameters


def averaging(config: TrainConfig, method: Algorithm) -> Callable:
    """The normaliser that is asked for, else the method's own."""
    return NORMALISERS[config.normaliser] if config.normaliser else method.normaliser


def takes_length(config: TrainConfig, method: Algorithm) -> bool:
    return "max_length" in inspect.signature(averaging(config, method)).parameters


NEEDS: dict[str, tuple[Callable[[TrainConfig, Algorithm], Any], str]] = {
    "advantage": (lambda c, m: not m.critic, "a method that has no critic"),
    "max_length": (takes_length, "normaliser='constant'"),
    "detach_shift": (  # where γ is in the ratio
        lambda c, m: c.router_shift and c.placement == "before_clip",
        "router_shift and placement='before_clip'",
    ),
    "placement": (lambda c, m: c.router_shift, "router_shift"),
    "kl_in": (lambda c, m: c.beta > 0, "beta > 0"),
    "kl_estimator": (lambda c, m: c.beta > 0 and c.kl_in == "loss", "a KL in the loss"),
}
"""Settings that do nothing by themselves: when they act, and what that asks for."""


def check_sizes(config: TrainConfig, method: Algorithm) -> None:
    """Raise `UserError` on a group, or a number of updates, that is too small."""
    alone = method.critic or config.advantage == "reinforce_plus_plus"
    if config.group_size < 2 and (config.dynamic_sampling or not alone):
        name = "dynamic_sampling" if alone else method.name
        raise UserError(
            f"{name} compares the responses to one prompt: group_size must be ≥ 2, got "
            f"{config.group_size}"
        )
    if config.updates_per_rollout == 1 and not config.allow_on_policy:
        raise UserError(
            "one update per rollout (minibatches × epochs = 1): the ratio is 1, every "
            "clip is inert, and all these methods coincide. Take more, or set "
            "allow_on_policy=True if that is what you want to show"
        )


def check_ratio(config: TrainConfig, method: Algorithm, has_ratio: bool) -> None:
    """Raise `UserError` where a ratio is corrected twice, or there is none, and where
    an advantage has no place for what is asked beside it."""
    weighing = corrections.WEIGHING & config.corrections.keys()
    if weighing and config.trust_sampler and has_ratio:
        raise UserError(
            f"{weighing.pop()} multiplies by π_θ/μ, and so does {method.name}, whose "
            "ratio is against the sampler: take a rule that only drops, as token_reject"
        )
    if config.advantage == "gdpo" and (config.overlong_share or config.kl_in != "loss"):
        raise UserError("gdpo has no place for overlong_share or a KL in the reward")
    if config.router_shift and not has_ratio:
        raise UserError(
            f"router_shift multiplies the ratio, and {method.name} has none "
            "without correct=True"
        )
