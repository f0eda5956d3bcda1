"""From settings to objects: `prepare` makes the `Run` that the loop works with.

Everything that can be checked is checked here, once, before the run starts.
"""

import inspect
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import advantages, logprobs, models, turns
from refimpl.advantages import CRITIC_FREE, NAMED, Scored, gae, lam_by_length
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.checkpoint import Checkpoint
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.hooks import (
    Bar,
    check_staleness,
    evaluate,
    stop_if_asked,
    warn_if_never_right,
)
from refimpl.loss_terms import (
    KL,
    Entropy,
    LoadBalance,
    LossCorrection,
    LossTerm,
    Part,
    RouterShift,
    SamplerMismatch,
    Value,
    has_ratio,
)
from refimpl.models import Model
from refimpl.moe import can_be_recorded, is_moe, routers
from refimpl.normalisers import NORMALISERS, apply
from refimpl.responses import DynamicSampling, Responses, Scoring, once
from refimpl.rewards import overlong_punishment, rows_of
from refimpl.rollout import Rollout
from refimpl.run import Run
from refimpl.samplers import Delayed, Rounded
from refimpl.sampling import Sampler, encode
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import Arithmetic, Calculator
from refimpl.validation import UserError, check_call, guarded, named

FEW = 8
"""Held-out rows of a task that are tried."""


@guarded
def prepare(
    algorithm: str | Algorithm,
    config: TrainConfig | None = None,
    model: Model | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
    log_probs: Callable = logprobs.log_probs,
    sampler: Callable | None = None,
    corrections: Collection[Callable] = (),
    loss_terms: Collection[Callable] = (),
    teacher: Model | None = None,
) -> Run:
    """Check everything that can be checked, then build the run (see `train`).

    Raises `UserError` on bad input.
    """
    # 1. The method, and the settings that its paper prescribes.
    method = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    config = config or TrainConfig()
    if config.advantage == "gae":
        method = with_critic(method)
    config, hyperparameters = check_fit(config, method)
    # 2. The task. A few rows are drawn, so that a faulty one fails before any work.
    task, reward, prompts = tried(task, reward, config)
    # 3. The policy, as a copy: the caller's model keeps its weights.
    policy, tokenizer, records = starting_policy(
        model, tokenizer, task, prompts, config
    )
    # 4. The objects that settings ask for, and those that were handed in.
    if teacher is not None or config.advantage == "distillation":
        check_teacher(config, method, teacher, loss_terms)
    critic, value = critic_for(policy, config) if method.critic else (None, None)
    own_corrections = corrections_for(config)
    own_terms = loss_terms_for(config, records, value)
    handed = [x for x in (*corrections, *loss_terms, sampler) if x is not None]
    if handed:
        made = [*own_corrections, *own_terms]
        check_objects(corrections, loss_terms, handed, made, config)
    needs_reference = config.beta > 0 or any(isinstance(t, KL) for t in loss_terms)
    # Rows with Â = 0 need a pass if a term acts there. (Load balancing alone is
    # computed on the rows that get a pass anyway.)
    acts = bool(loss_terms) or any(not isinstance(t, LoadBalance) for t in own_terms)
    several = DynamicSampling(config.prompts_per_rollout, config.max_sampling_rounds)
    seen = partial(turns.seen, task, tokenizer)
    by_length = partial(lam_by_length, alpha=config.lam_alpha)
    average = normaliser_of(config, method)
    # log π_old is read from the policy, unless the sampler's log-probs are as exact,
    # or are trusted.
    differs = config.mismatch or sampler is not None or config.replay == "R2"
    run = Run(
        algorithm=method,
        config=config,
        hyperparameters=hyperparameters,
        tokenizer=tokenizer,
        task=task,
        reward=reward,
        model=policy,
        critic=critic,
        reference=models.frozen_copy(policy) if needs_reference else None,
        teacher=None if teacher is None else teacher_for(policy, teacher),
        optimizer=optimizer_for(policy, critic, config),
        history=History(method.name, model=policy),
        fill_batch=several if config.dynamic_sampling else once,
        sampler=sampler_for(policy, config, records, sampler),
        old_logp_of="policy" if differs and not config.trust_sampler else "sampler",
        log_probs=log_probs,
        score=scoring_for(method, config, task, reward, tokenizer),
        turns=seen if hasattr(task, "observe") else lambda rollout: {},
        lam=by_length if config.lam_alpha else lambda mask: config.lam,
        advantages=advantages_for(method, config),
        loss_mask=without_truncated if config.overlong_filtering else whole,
        normaliser=partial(apply, average, max_length=config.longest),
        corrections=[*own_corrections, *corrections],
        loss_terms=[*own_terms, *loss_terms],
        value=value,
        records_routing=records,
        zero_advantage_rows_matter=acts or has_penalty(method, hyperparameters),
        handed_in=handed,
    )
    run.corrections = [in_run(run, part) for part in run.corrections]
    run.loss_terms = [in_run(run, part) for part in run.loss_terms]
    if log_probs is not logprobs.log_probs:
        check_call("log_probs", log_probs, "model", "rollout", "temperature")
        logprobs.check_reader(log_probs, policy, tokenizer, prompts[:2], config)
    return run


# 1. The method


def with_critic(method: Algorithm) -> Algorithm:
    """Give any method a critic and GAE."""
    return replace(method, critic=True, advantages=gae)


# 2. The task


def tried(
    task, reward: Callable | None, config: TrainConfig
) -> tuple[Any, Callable, list[str]]:
    """Draw a few rows of the task (None: arithmetic), and return their prompts, too.

    Raises `UserError` if they are invalid. A reward of None is the task's own.
    """
    task = Arithmetic() if task is None else task
    # Ask for as many as a rollout will: a task may have a fixed set of problems.
    rows = rows_of(task, "sample", config.prompts_per_rollout)
    held_out = rows_of(task, "held_out", min(FEW, config.eval_problems))
    reward = task.reward if reward is None else reward
    if config.max_turns and not hasattr(task, "observe"):
        raise UserError("max_turns has no effect without a task that has `observe`")
    return task, reward, [row["prompt"] for row in rows + held_out]


# 3. The policy


def starting_policy(
    model: Model | None, tokenizer, task, prompts: list[str], config: TrainConfig
) -> tuple[Model, PreTrainedTokenizerBase, bool]:
    """Copy the model (None: the warm-started one) for training, on the run's device.

    Returns it with its tokenizer, and whether its routers can be recorded. Raises
    `UserError` if it cannot read the prompts or be sampled from.
    """
    if (model is None) != (tokenizer is None):
        raise UserError("give model and tokenizer together, or neither")
    own = model is not None
    if model is None:
        tool = isinstance(task, Calculator)  # whose policy has tokens for calls
        model, tokenizer, _ = warm_start(WarmStart(world=task) if tool else WarmStart())
    encode(model, tokenizer, prompts, config.max_new_tokens)  # checks them
    # bfloat16 means autocast, so the weights themselves stay float32.
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    model = models.trainable_copy(model).to(config.device, dtype)
    moe = is_moe(model)
    if moe and dtype == torch.float64:
        model.set_experts_implementation("eager")  # the fused one has no float64
    if own:
        logprobs.check_sampling(model)
    names = config.needs_moe
    records = bool(names or moe) and can_be_recorded(model, names)
    if records and hasattr(task, "observe"):
        raise UserError(
            "a task with `observe` needs a dense model: routing cannot be recorded "
            "where the task inserts tokens"
        )
    return model, tokenizer, records


# 4. The objects that settings ask for


def check_objects(
    corrections: Collection,
    loss_terms: Collection,
    handed: list,
    made: list,
    config: TrainConfig,
) -> None:
    """Raise `UserError` on an object in the wrong list, or twice in a run.

    `made` are the corrections and loss terms that the run has in any case.
    """
    refuse_classes(handed)
    for part in corrections:
        if isinstance(part, LossTerm):
            raise UserError(f"{type(part).__name__} belongs in loss_terms=[…]")
        check_call(f"correction {named(part)}", part, "part", "reading", "inputs")
    for part in loss_terms:
        if isinstance(part, LossCorrection):
            raise UserError(f"{type(part).__name__} belongs in corrections=[…]")
        check_call(f"loss term {named(part)}", part, "part", "reading", "weight")
    ours = [part for part in handed if isinstance(part, Part)]
    for part in ours:
        if part.setting and getattr(config, part.setting):
            raise UserError(
                f"{part.setting} and {type(part).__name__} are the same: give one of "
                "them"
            )
    seen: dict[Any, str] = {}  # those with one setting do the same
    for part in (*made, *ours):
        kind, name = part.setting or type(part), type(part).__name__
        if kind in seen:
            raise UserError(
                f"{name} would be the second of its kind in this run, after "
                f"{seen[kind]}: leave one of them out"
            )
        seen[kind] = name


def refuse_classes(handed: Collection) -> None:
    """Raise `UserError` if a class was handed in where an object of it was meant."""
    for part in handed:
        if isinstance(part, type):
            raise UserError(
                f"{part.__name__} is a class: give an object, {part.__name__}(…)"
            )


def in_run(run: Run, part: Callable) -> Callable:
    """Return what the run calls for a term or a correction (see `loss_terms.Part`)."""
    return part.for_run(run) if hasattr(part, "for_run") else part


def sampler_for(
    model: Model, config: TrainConfig, records: bool, wrap: Callable | None = None
) -> Sampler:
    """Make the sampler: the policy's own, and around it what differs as engines do."""
    rounds = config.rollout_dtype == "int8"  # only weights; activations keep `dtype`
    dtype = config.dtype if rounds else config.rollout_dtype or config.dtype
    sampler = Sampler(model, dtype, config.router_noise, records)
    if config.sampler_delay:
        sampler = Delayed(config.sampler_delay)(sampler)
    if rounds:
        # Last, because an engine rounds the weights that have arrived.
        sampler = Rounded()(sampler)
    if wrap is not None:
        sampler = wrapped(sampler, wrap)
    sampler.sync()
    return sampler


def wrapped(sampler: Sampler, wrap: Callable) -> Sampler:
    """Make the sampler that was handed in. Raises `UserError` if it is none."""
    check_call("sampler", wrap, "policy")
    own = wrap(sampler)
    if not isinstance(own, Sampler):
        raise UserError(f"sampler must return a refimpl.sampling.Sampler, got {own!r}")
    if own.model is not sampler.model and type(own).sync is Sampler.sync:
        raise UserError(
            "the sampler has a model of its own, and no `sync` that brings it the "
            "policy's weights: see refimpl.samplers"
        )
    return own


def normaliser_of(config: TrainConfig, method: Algorithm) -> Callable:
    """Return the normaliser of the settings, or else the method's own."""
    return NORMALISERS[config.normaliser] if config.normaliser else method.normaliser


def corrections_for(config: TrainConfig) -> list[LossCorrection]:
    """Make the corrections of ratios or weights that the settings ask for."""
    made: list[LossCorrection] = []
    if config.corrections:
        made.append(SamplerMismatch(config.corrections))
    if config.router_shift:
        made.append(RouterShift())
    return made


def loss_terms_for(
    config: TrainConfig, records_routing: bool, value: Value | None
) -> list[LossTerm]:
    """Make the loss terms that the settings, routers or a critic call for."""
    terms: list[LossTerm] = []
    if records_routing:
        terms.append(LoadBalance())
    if config.beta > 0 and config.kl_in == "loss":
        terms.append(KL(config.beta))
    if config.entropy_bonus:
        terms.append(Entropy(config.entropy_bonus))
    if value is not None:
        terms.append(value)
    return terms


def optimizer_for(
    model: Model, critic: Model | None, config: TrainConfig
) -> torch.optim.Optimizer:
    """Make AdamW or SGD, with separate learning rates for routers and critic."""
    rate, faster = config.learning_rate, config.router_rate
    experts = routers(model) if faster != 1 else []
    apart = [p for r in experts for p in r.parameters() if p.requires_grad]
    # Compare by identity: == on tensors compares their numbers.
    rest = [p for p in models.trained(model) if not any(p is q for q in apart)]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": rate}]
    if apart:
        groups.append({"params": apart, "lr": faster * rate})
    if critic is not None:
        params = models.trained(critic)
        groups.append({"params": params, "lr": config.critic_learning_rate})
    common: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, **common)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), **common)


def scoring_for(
    method: Algorithm, config: TrainConfig, task, reward, tokenizer
) -> Scoring:
    """Make the scoring of responses."""
    scoring = Scoring(reward, task.reward, tokenizer, config.group_size)
    if NAMED.get(config.advantage, method.advantages) is advantages.gdpo:
        scoring = replace(scoring, compare=partial(by_component, reward))
    if share := config.overlong_share:  # DAPO's soft punishment of long responses
        limit = config.max_new_tokens
        punish = partial(overlong_punishment, max_length=limit, buffer=share * limit)
        scoring = replace(scoring, punishment=punish)
    return scoring


def by_component(reward, drawn: Responses) -> Tensor:
    """GDPO's advantages, from which it follows which groups are worth training on."""
    components = drawn.component_matrix(torch.arange(len(drawn.rewards)))
    weights = getattr(reward, "weights", None)
    known = {"components": components, "weights": weights}
    return advantages.gdpo(Scored(drawn.rewards, drawn.rollout.group, **known))


def advantages_for(method: Algorithm, config: TrainConfig) -> Callable:
    """Return f(scored) → advantages per token, a critic's targets, and metrics."""
    estimator = NAMED.get(config.advantage, method.advantages)
    check_call("advantages", estimator, "scored")
    each = advantages.PerToken(estimator, f"the advantages of {method.name}")
    if not method.critic:
        return each
    return advantages.WithCritic(each, config.lam_critic, config.whiten)


def whole(rollout: Rollout) -> Tensor:
    """Every token that the policy wrote has a loss."""
    return rollout.mask


def without_truncated(rollout: Rollout) -> Tensor:
    """Truncated responses have no loss, but their rewards stay in the baseline."""
    return rollout.mask * ~rollout.truncated[:, None]


def critic_for(model: Model, config: TrainConfig) -> tuple[Model, Value]:
    """Make the critic and its loss."""
    critic = models.make_critic(model, config.critic_frozen or ())
    of_critic = partial(logprobs.values, critic, dtype=config.dtype)
    return critic, Value(of_critic, config.value_clip)


def check_teacher(
    config: TrainConfig, method: Algorithm, teacher, loss_terms: Collection
) -> None:
    """Raise `UserError` if a teacher is missing, or nothing reads it."""
    if teacher is None:
        raise UserError("advantage='distillation' needs train(…, teacher=model)")
    estimator = NAMED.get(config.advantage, method.advantages)
    ours = [f for name, f in NAMED.items() if name != "distillation"]
    others = [term for term in loss_terms if not isinstance(term, KL | Entropy)]
    if estimator in ours and not others:
        raise UserError(
            "nothing in this run reads the teacher: set advantage='distillation', or "
            "see advantages.with_teacher and loss_terms.Distillation"
        )


def teacher_for(model: Model, teacher: Model) -> Model:
    """Copy the teacher to the policy's device, with the policy's vocabulary."""
    own, size = models.vocabulary(model), models.vocabulary(teacher)
    if size < own:
        raise UserError(
            f"the teacher has {size} tokens and the policy {own}: a teacher must know "
            "every token that the policy may write"
        )
    teacher = models.frozen_copy(teacher).to(model.device, model.dtype)
    if size > own:  # padding of its vocabulary, which no one samples
        teacher.resize_token_embeddings(own)
    return teacher


def has_penalty(method: Algorithm, hyperparameters: dict) -> bool:
    """True if the objective may have a gradient where Â = 0.

    A user's may, unless it says no: a pass too many costs time, but a pass too few
    would lose a part of the loss.
    """
    if isinstance(method.penalty, str):  # a hyperparameter, which may be 0
        return {**method.defaults, **hyperparameters}[method.penalty] > 0
    if method.penalty is not None:
        return method.penalty
    return all(method.objective is not known.objective for known in ALGORITHMS.values())


# Hooks


def hooks_for(
    hooks: Collection[Callable], progress: bool, folder, resume: bool, overwrite: bool
) -> list[Callable]:
    """Put the library's hooks around a user's, in the order in which they act.

    Evaluate first, so that the user's can read the accuracy. Save after these, but
    before the last, which may raise an error. Raises `UserError` on a folder that
    cannot be used.
    """
    refuse_classes(hooks)
    for hook in hooks:
        check_call(f"hook {named(hook)}", hook, "run", "step")
    own = sorted(hooks, key=lambda hook: isinstance(hook, Checkpoint))
    if folder is not None:
        if any(isinstance(hook, Checkpoint) for hook in hooks):
            raise UserError("checkpoint_dir and Checkpoint are the same: give one")
        own.append(Checkpoint(folder, resume, overwrite))
    elif resume or overwrite:
        raise UserError("resume and overwrite need a checkpoint_dir, got None")
    bar = [Bar()] if progress else []
    last = stop_if_asked, check_staleness
    return [warn_if_never_right, evaluate, *own, *bar, *last]


# Checks


def check_fit(config: TrainConfig, method: Algorithm) -> tuple[TrainConfig, dict]:
    """Add the settings that `method`'s paper prescribes, and check that all fit.

    Returns them with the hyperparameters. Raises `UserError` if the method cannot run
    with them.
    """
    config = config.completed(method.training)
    if method.anchor == "sampler":
        config = replace(config, trust_sampler=True)
    given = config.hyperparameters
    hyperparameters = method.check_hyperparameters(given) if given else {}
    for names, (acts, without) in NEEDS.items():
        for name in names.split():
            changed = getattr(config, name) != getattr(TrainConfig(), name)
            if changed and not acts(config, method):
                raise UserError(f"{name} has no effect without {without}; leave it off")
    check_together(config)
    return config, hyperparameters


NEEDS: dict[str, tuple[Callable[[TrainConfig, Algorithm], Any], str]] = {
    "advantage": (
        lambda c, m: c.advantage == "gae" or not m.critic,
        "a critic-free method",
    ),
    "gamma lam": (  # a user's own estimator may use them
        lambda c, m: m.critic or m.advantages not in CRITIC_FREE.values(),
        "a method with a critic",
    ),
    "lam": (lambda c, m: c.lam_alpha is None, "lam_alpha=None, which replaces it"),
    "lam_alpha lam_critic whiten value_clip critic_learning_rate critic_updates "
    "critic_warmup critic_frozen": (lambda c, m: m.critic, "a method with a critic"),
    "critic_warmup": (
        lambda c, m: c.critic_warmup < c.rollouts,
        "a rollout after it, in which the policy learns",
    ),
    "max_length": (
        lambda c, m: "max_length" in inspect.signature(normaliser_of(c, m)).parameters,
        "normaliser='constant'",
    ),
    "kl_in": (lambda c, m: c.beta > 0, "beta > 0"),
    "router_shift": (
        lambda c, m: has_ratio(m, c.hyperparameters),
        "a ratio to multiply: set correct=True",
    ),
}
"""Settings that need others: a test of whether they act, and what they need."""


def check_together(config: TrainConfig) -> None:
    """Raise `UserError` on groups, rewards or updates that do not work together."""
    if config.group_size < 2 and config.dynamic_sampling:
        raise UserError(
            "dynamic_sampling compares the responses to one prompt: group_size must be "
            f"≥ 2, got {config.group_size}"
        )
    if config.dynamic_sampling and config.advantage == "distillation":
        raise UserError(
            "advantage='distillation' compares no rewards, so that dynamic_sampling "
            "has no group to prefer: set dynamic_sampling=False"
        )
    if config.advantage == "gdpo" and (config.overlong_share or config.kl_in != "loss"):
        raise UserError(
            "gdpo cannot be combined with overlong_share or a KL in the reward: it "
            "compares the reward's components, which these do not change"
        )
    if config.updates_per_rollout == 1 and not config.allow_on_policy:
        raise UserError(
            "one update per rollout (minibatches × epochs = 1): the ratio is 1, every "
            "clip is inert, and all these methods coincide. Take more, or set "
            "allow_on_policy=True if that is what you want to show"
        )
