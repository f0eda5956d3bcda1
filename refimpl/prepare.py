"""From what a user hands in to a `Run`: all that can be asked is asked here, once."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from refimpl import algorithms, corrections, models, moe, scoring, terms
from refimpl.algorithms import Algorithm
from refimpl.checks import UserError, guarded, refuse_unknown, rows_of, shown
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.models import Model, trained
from refimpl.normalisers import NORMALISERS
from refimpl.rewards import check_rows
from refimpl.run import Run
from refimpl.samplers import Delayed, Policy, Rounded
from refimpl.sampling import encode
from refimpl.starts import warm_start
from refimpl.tasks import Arithmetic

CRITIC_LEARNING_RATE = 1e-3


@guarded
def prepare(
    algorithm: str | Algorithm,
    config: TrainConfig | None = None,
    model: Model | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
    log_probs: Callable = scoring.log_probs,
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
    if moe.is_moe(model) and dtype == torch.float64:
        model.set_experts_implementation("eager")  # the fused one has no float64
    with models.one_thread(model):
        scoring.check_sampling(model)
        routers_known = moe.can_be_recorded(model, config.needs_moe)
    critic = reference = None
    if method.critic:
        critic = models.make_critic(model)
    if config.beta > 0:
        reference = models.frozen_copy(model)
    run = Run(
        algorithm=method,
        config=config,
        hyperparameters=hyperparameters,
        normaliser=NORMALISERS.get(config.normaliser, method.normaliser),
        tokenizer=tokenizer,
        task=task,
        reward=reward,
        model=model,
        critic=critic,
        reference=reference,
        sampler=sampler(model, config, routers_known),
        log_probs=log_probs,
        optimizer=optimizer(model, critic, config),
        history=History(method.name, model=model),
        routers_known=routers_known,
        acts_everywhere=method.acts_without_advantage(**hyperparameters),
        whole_groups=getattr(log_probs, "whole_groups", False),
    )
    add_physics(run, config)
    return run


def add_physics(run: Run, config: TrainConfig) -> None:
    """Whatever is asked for beside the method: terms and corrections."""
    if rules := config.corrections:
        run.corrections.append(terms.corrected(rules, config.trust_sampler))
    if config.router_shift:
        one_ratio, detach = run.algorithm.one_ratio, config.detach_shift
        shift = terms.router_shift(config.placement, one_ratio, detach)
        run.corrections.append(shift)
    if run.routers_known:
        run.terms.append(terms.load_balance)
    if config.beta > 0 and config.kl_in == "loss":
        run.terms.append(terms.kl(config.beta, config.kl_estimator))
    if config.entropy_bonus:
        run.terms.append(terms.entropy(config.entropy_bonus))
    if run.critic is not None:
        run.terms.append(terms.value(run.values, config.value_clip))
    # The load balance alone is content with the rows that are passed anyway.
    run.acts_everywhere |= len(run.terms) > run.routers_known


def sampler(model: Model, config: TrainConfig, records: bool) -> Policy:
    """The policy itself, or what draws in its place."""
    rounds = config.rollout_dtype == "int8"  # the weights alone
    dtype = config.dtype if rounds else config.rollout_dtype or config.dtype
    drawing = Policy(model, dtype, config.router_noise, records)
    if config.sampler_delay:
        drawing = Delayed(drawing, config.sampler_delay)
    if rounds:
        drawing = Rounded(drawing)
    drawing.sync()
    return drawing


def check_fit(config: TrainConfig, method: Algorithm) -> tuple[TrainConfig, dict]:
    """The settings as `method`'s paper completes them, and the hyperparameters.

    Raises `UserError` if the method cannot run like this.
    """
    refuse_unknown(f"{method.name}.training", method.training, vars(config))
    config = config.completed(method.training)
    if method.anchor == "sampler":
        config = replace(config, trust_sampler=True)
    hyperparameters = method.check_hyperparameters(config.hyperparameters)
    normaliser = NORMALISERS.get(config.normaliser, method.normaliser)
    takes_length = "max_length" in inspect.signature(normaliser).parameters
    shift, kl = config.router_shift, config.beta > 0
    before = shift and config.placement == "before_clip"  # where γ is in the ratio
    for name, off, acts, without in (
        ("advantage", None, not method.critic, "a method that has no critic"),
        ("max_length", None, takes_length, "normaliser='constant'"),
        ("detach_shift", True, before, "router_shift and placement='before_clip'"),
        ("placement", "before_clip", shift, "router_shift"),
        ("kl_in", "loss", kl, "beta > 0"),
        ("kl_estimator", "k3", kl and config.kl_in == "loss", "a KL in the loss"),
    ):
        if getattr(config, name) != off and not acts:
            raise UserError(f"{name} has no effect without {without}; leave it off")
    if config.group_size < 2 and (config.dynamic_sampling or not method.critic):
        name = "dynamic_sampling" if method.critic else method.name
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
    # A method may make its ratio optional, by a hyperparameter `correct`.
    has_ratio = {"correct": True, **method.defaults, **hyperparameters}["correct"]
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
    return config, hyperparameters


def optimizer(
    model: Model, critic: Model | None, config: TrainConfig
) -> torch.optim.Optimizer:
    """For what is trained, each at its rate: routers and critic may have another."""
    rate = config.learning_rate
    routers = moe.routers(model) if config.router_rate != 1 else []
    apart = [p for r in routers for p in r.parameters() if p.requires_grad]
    rest = [p for p in trained(model) if not any(p is router for router in apart)]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": rate}]
    if apart:
        groups.append({"params": apart, "lr": config.router_rate * rate})
    if critic is not None:
        groups.append({"params": critic.parameters(), "lr": CRITIC_LEARNING_RATE})
    common: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, **common)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), **common)
