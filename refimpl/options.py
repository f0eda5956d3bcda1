"""From settings to objects: `prepare` makes the `Run` that the loop works with.

Everything that can be checked is checked here, once, before the run starts.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import algorithms, logprobs, models, samples
from refimpl.advantages import CRITIC_FREE, NAMED, gae
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.config import TrainConfig
from refimpl.corrections import WEIGHING
from refimpl.history import History
from refimpl.logprobs import Reading
from refimpl.loss_terms import (
    KL,
    Correction,
    Entropy,
    LoadBalance,
    RouterShift,
    SamplerMismatch,
    Term,
    Value,
)
from refimpl.models import Model, precision
from refimpl.moe import Drift, can_be_recorded, is_moe, routed, routers
from refimpl.normalisers import NORMALISERS, weigher
from refimpl.rehearsal import FEW, rehearse
from refimpl.responses import DynamicSampling, Responses, once
from refimpl.rewards import OFFERED, OFFERED_ANYWHERE, check_rows, rows_of
from refimpl.rollout import Batch, Rollout
from refimpl.samplers import Delayed, Rounded
from refimpl.sampling import Policy, encode
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import Arithmetic, Calculator
from refimpl.validation import (
    UserError,
    check_call,
    guarded,
    one_line,
)


class Constants(NamedTuple):
    """Tensors that stay fixed during the K updates of a rollout; None where not needed.

    `old_logp` is None if the sampler's log-probs stand for log π_old. `experts` and
    `router_logp` are those of the pass that computed log π_old.
    """

    old_logp: Float[Tensor, "B T"] | None = None
    ref_logp: Float[Tensor, "B T"] | None = None
    teacher_logp: Float[Tensor, "B T"] | None = None
    old_values: Float[Tensor, "B T"] | None = None
    experts: Int[Tensor, "B L layers k"] | None = None
    router_logp: Float[Tensor, "B L layers k"] | None = None


@dataclass
class Run:
    """The objects of a training run.

    `config` includes the settings that the method's paper prescribes, and
    `hyperparameters` have been checked. `critic`, `value`, `reference` and `teacher`
    are None in a run that does not need them.
    """

    algorithm: Algorithm
    config: TrainConfig
    hyperparameters: dict
    tokenizer: PreTrainedTokenizerBase
    task: Any  # see `refimpl.tasks`
    reward: Callable
    model: Model
    critic: Model | None
    reference: Model | None
    teacher: Model | None
    optimizer: torch.optim.Optimizer
    history: History
    # The steps of `loop`
    fill_batch: Callable  # one round of responses, or dynamic sampling
    sampler: Policy
    log_probs: Callable  # f(model, rollout, temperature) → (logp, entropy)
    reads_old: bool  # compute log π_old in a pass; else use the sampler's log-probs
    advantages: Callable  # f(scored) → (B,) or (B, T)
    normaliser: Callable  # f(mask of a mini-batch, group) → weight (B, T)
    corrections: list[Correction]
    loss_terms: list[Term]
    value: Value | None  # the critic's loss
    records_routing: bool  # the model is a mixture of experts with a router we can read
    zero_advantage_rows_matter: bool  # rows with Â = 0 have a gradient, as with a KL
    handed_in: list[str]  # names of objects, which a resumed run must be given again
    progress: bool  # show a bar, and samples as they come
    # The state of the run
    batch: Batch | None = None  # of the latest rollout
    complete: bool = True  # all updates of the latest rollout are done
    stop_signal: int | None = None  # the signal that asked the run to end

    def last(self, step: int) -> bool:
        """True if the run ends with this rollout."""
        return step + 1 == self.config.rollouts or bool(self.stop_signal)

    def read(self, model: Model, rollout: Rollout, replay: bool = False) -> Reading:
        """Compute a model's log-probs and entropies, nats, in this run's precision.

        With `replay`, each token visits the experts on the rollout's record.
        """
        watched: Any = contextlib.nullcontext()
        if self.records_routing and model is self.model:
            watched = routed(model, experts=rollout.experts if replay else None)
        with precision(model, self.config.dtype), watched as routing:
            logp, entropy = self.log_probs(model, rollout, self.config.temperature)
        return Reading(logp, entropy, routing and Drift(rollout, routing))

    def constants(self, rollout: Rollout) -> Constants:
        """Compute everything that stays fixed during the K updates.

        log π_old comes from a pass of the training model if the sampler's log-probs
        cannot stand for it, or if the experts of that pass are replayed (R2).
        """
        fixed: dict[str, Tensor] = {}
        if self.reads_old:
            # R3 replays the sampler's experts here. R2 lets the routers choose, and
            # replays their choice in the updates.
            reading = self.read(self.model, rollout, self.config.replay == "R3")
            fixed["old_logp"] = reading.logp
            if reading.routers:
                fixed |= reading.routers.routing.visits(len(rollout))._asdict()
        if self.reference is not None:
            fixed["ref_logp"] = self.read(self.reference, rollout).logp
        if self.teacher is not None:
            fixed["teacher_logp"] = self.read(self.teacher, rollout).logp
        if self.value is not None:
            fixed["old_values"] = self.value.values(rollout)
        return Constants(**fixed)

    def show_samples(self, step: int, drawn: Responses) -> None:
        """Put a few responses into the history; print them if progress is shown."""
        chosen = samples.chosen(
            step,
            drawn.prompts,
            drawn.texts,
            drawn.rewards.tolist(),
            drawn.group_size,
            drawn.extra,
        )
        self.history.samples += chosen
        if self.progress:
            samples.show(chosen, getattr(self.tokenizer, "all_special_tokens", ()))


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
    progress: bool = False,
) -> Run:
    """Check everything that can be checked, then build the run (see `train`).

    Raises `UserError` on bad input.
    """
    # The method, and the settings that its paper prescribes.
    method = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    config = config or TrainConfig()
    method = with_critic(method, config)
    config, hyperparameters = check_fit(config, method)
    acts_without_advantage = method.acts_without_advantage(**hyperparameters)
    # The task. A few rows are drawn now, so that a faulty one fails before any work.
    task = Arithmetic() if task is None else task
    prompts = check_task(task, reward, config)
    reward = task.reward if reward is None else reward
    estimator = NAMED.get(config.advantage, method.advantages)
    if getattr(estimator, "by_component", False) and not hasattr(reward, "components"):
        raise UserError(
            f"the advantages of {estimator.__name__} need a reward with components, "
            "such as refimpl.pretrained.rewards.Sum"
        )
    # The policy, as a copy: the caller's model keeps its weights.
    if (model is None) != (tokenizer is None):
        raise UserError("give model and tokenizer together, or neither")
    device, own = models.pick_device(config.device), model is not None
    if model is None:
        tool = isinstance(task, Calculator)  # whose policy has tokens for calls
        model, tokenizer, _ = warm_start(WarmStart(world=task) if tool else WarmStart())
    encode(model, tokenizer, prompts, config.max_new_tokens)  # checks them
    # bfloat16 means autocast, so the weights themselves stay float32.
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    model = models.trainable_copy(model).to(device, dtype)
    if is_moe(model) and dtype == torch.float64:
        model.set_experts_implementation("eager")  # the fused one has no float64
    with models.one_thread(model):
        if own:
            logprobs.check_sampling(model)
        names = config.needs_moe
        records_routing = bool(names or is_moe(model)) and can_be_recorded(model, names)
    if records_routing and hasattr(task, "observe"):
        raise UserError(
            "a task with `observe` needs a dense model: routing cannot be recorded "
            "where the task inserts tokens"
        )
    # The objects that the settings ask for, and those that were handed in.
    critic = value = None
    if method.critic:
        critic = models.make_critic(model, config.critic_frozen or ())
        of_critic = partial(logprobs.values, critic, dtype=config.dtype)
        value = Value(of_critic, config.value_clip)
    rounds = config.prompts_per_rollout, config.max_sampling_rounds
    apart = config.mismatch or sampler is not None or config.replay == "R2"
    terms = [*loss_terms_for(config, records_routing, value), *map(fresh, loss_terms)]
    reference = None
    if config.beta > 0 or any(isinstance(term, KL) for term in terms):
        reference = models.frozen_copy(model)
    if teacher is not None:
        if models.vocabulary(teacher) != models.vocabulary(model):
            raise UserError("the teacher must have the policy's vocabulary")
        teacher = models.frozen_copy(teacher).to(device, dtype)
    elif config.advantage == "distillation":
        raise UserError("advantage='distillation' needs train(…, teacher=model)")
    # A checkpoint compares these names: a resumed run must be given the same objects.
    extras = [*corrections, *loss_terms] + [sampler] * (sampler is not None)
    run = Run(
        algorithm=method,
        config=config,
        hyperparameters=hyperparameters,
        tokenizer=tokenizer,
        task=task,
        reward=reward,
        model=model,
        critic=critic,
        reference=reference,
        teacher=teacher,
        optimizer=optimizer_for(model, critic, config),
        history=History(method.name, model=model),
        fill_batch=DynamicSampling(*rounds) if config.dynamic_sampling else once,
        sampler=sampler_for(model, config, records_routing, sampler),
        log_probs=log_probs,
        reads_old=apart and not config.trust_sampler,
        advantages=estimator,
        normaliser=weigher(averaging(config, method), config.longest),
        corrections=[*corrections_for(config, method.one_ratio), *corrections],
        loss_terms=terms,
        value=value,
        records_routing=records_routing,
        # A KL or an entropy bonus also acts on rows with Â = 0, so these need a pass,
        # too. Load balancing alone is computed on the rows that get a pass anyway.
        zero_advantage_rows_matter=acts_without_advantage
        or not all(isinstance(term, LoadBalance) for term in terms),
        handed_in=[getattr(x, "__qualname__", None) or repr(x) for x in extras],
        progress=progress,
    )
    new = log_probs is not logprobs.log_probs or method not in ALGORITHMS.values()
    if new or corrections or loss_terms:
        rehearse(run, prompts[:2])
    return run


# The objects that settings ask for


def with_critic(method: Algorithm, config: TrainConfig) -> Algorithm:
    """Give any method a critic and GAE, if the settings ask for it."""
    if config.advantage != "gae":
        return method
    return replace(method, critic=True, advantages=gae)


def fresh(term: Term) -> Term:
    """Copy a term that has a state, so that every run begins with a new one."""
    return copy.copy(term) if hasattr(term, "state_dict") else term


def sampler_for(
    model: Model, config: TrainConfig, records: bool, wrap: Callable | None = None
) -> Policy:
    """Make the sampler: the policy itself, or one that differs from it as engines do.

    `wrap`, if given, maps it to the sampler to use instead.
    """
    rounds = config.rollout_dtype == "int8"  # only weights; activations keep `dtype`
    dtype = config.dtype if rounds else config.rollout_dtype or config.dtype
    sampler = Policy(model, dtype, config.router_noise, records)
    if config.sampler_delay:
        sampler = Delayed(sampler, config.sampler_delay)
    if rounds:
        # Last, because an engine rounds the weights that have arrived.
        sampler = Rounded(sampler)
    sampler.sync()
    if wrap is not None:
        check_call("sampler", wrap, "policy")
        sampler = wrap(sampler)
        if not isinstance(sampler, Policy):
            raise UserError(
                f"sampler must return a refimpl.sampling.Policy, got {sampler!r}"
            )
        sampler.sync()
    return sampler


def averaging(config: TrainConfig, method: Algorithm) -> Callable:
    """Return the normaliser of the settings, or else the method's own."""
    return NORMALISERS[config.normaliser] if config.normaliser else method.normaliser


def corrections_for(config: TrainConfig, one_ratio: bool) -> list[Correction]:
    """Make the corrections of ratios or weights that the settings ask for."""
    made: list[Correction] = []
    if config.corrections:
        made.append(SamplerMismatch(config.corrections, config.trust_sampler))
    if config.router_shift:
        made.append(RouterShift(config.placement, one_ratio, config.detach_shift))
    return made


def loss_terms_for(
    config: TrainConfig, records_routing: bool, value: Value | None
) -> list[Term]:
    """Make the loss terms that the settings, routers or a critic call for."""
    terms: list[Term] = []
    if records_routing:
        terms.append(LoadBalance())
    if config.beta > 0 and config.kl_in == "loss":
        terms.append(KL(config.beta, config.kl_estimator))
    if config.entropy_bonus:
        terms.append(Entropy(config.entropy_bonus))
    if value is not None:
        terms.append(value)
    return terms


def optimizer_for(
    model: Model, critic: Model | None, config: TrainConfig
) -> torch.optim.Optimizer:
    """Make AdamW or SGD, with separate learning rates for routers and critic."""
    rate = config.learning_rate
    faster = routers(model) if config.router_rate != 1 else []
    apart = [p for r in faster for p in r.parameters() if p.requires_grad]
    # Compare by identity: == on tensors compares their numbers.
    rest = [p for p in models.trained(model) if not any(p is q for q in apart)]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": rate}]
    if apart:
        groups.append({"params": apart, "lr": config.router_rate * rate})
    if critic is not None:
        params = models.trained(critic)
        groups.append({"params": params, "lr": config.critic_learning_rate})
    common: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, **common)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), **common)


# Checks


def check_task(task, reward: Callable | None, config: TrainConfig) -> list[str]:
    """Draw a few rows of the task, and return their prompts.

    Raises `UserError` if the task or the reward (None: the task's own) is invalid.
    """
    # Ask for as many as a rollout will: a task may have a fixed set of problems.
    rows = rows_of(task, "sample", config.prompts_per_rollout)
    held_out = rows_of(task, "held_out", min(FEW, config.eval_problems))
    try:
        task.habit("")
        iter(task.habits)
    except Exception as error:
        raise UserError(
            "task.habit must be a function f(completion), and task.habits a list of "
            f"what it returns: {one_line(error)}"
        ) from error
    check_rows(task.reward if reward is None else reward, rows, OFFERED)
    check_rows(task.reward, held_out, OFFERED_ANYWHERE)
    if config.max_turns and not hasattr(task, "observe"):
        raise UserError("max_turns has no effect without a task that has `observe`")
    return [row["prompt"] for row in rows + held_out]


def check_fit(config: TrainConfig, method: Algorithm) -> tuple[TrainConfig, dict]:
    """Add the settings that `method`'s paper prescribes, and check that all fit.

    Returns them with the hyperparameters. Raises `UserError` if the method cannot run
    with them.
    """
    config = config.completed(method.training)
    if method.anchor == "sampler":
        config = replace(config, trust_sampler=True)
    hyperparameters = method.check_hyperparameters(config.hyperparameters)
    for names, (acts, without) in NEEDS.items():
        for name in names.split():
            changed = getattr(config, name) != getattr(TrainConfig(), name)
            if changed and not acts(config, method):
                raise UserError(f"{name} has no effect without {without}; leave it off")
    check_sizes(config, method)
    # A method may make its ratio optional, by a hyperparameter `correct`.
    values = {"correct": True, **method.defaults, **hyperparameters}
    check_ratio(config, method, values["correct"])
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
    "lam_alpha lam_critic whiten value_clip critic_learning_rate critic_updates "
    "critic_warmup critic_frozen": (lambda c, m: m.critic, "a method with a critic"),
    "max_length": (
        lambda c, m: "max_length" in inspect.signature(averaging(c, m)).parameters,
        "normaliser='constant'",
    ),
    "detach_shift": (  # where γ is in the ratio
        lambda c, m: c.router_shift and c.placement == "before_clip",
        "router_shift and placement='before_clip'",
    ),
    "placement": (lambda c, m: c.router_shift, "router_shift"),
    "kl_in": (lambda c, m: c.beta > 0, "beta > 0"),
    "kl_estimator": (lambda c, m: c.beta > 0 and c.kl_in == "loss", "a KL in the loss"),
}
"""Settings that need others: a test of whether they act, and what they need."""


def check_sizes(config: TrainConfig, method: Algorithm) -> None:
    """Raise `UserError` on a group, or a number of updates, that is too small."""
    single = ("reinforce_plus_plus", "distillation")
    alone = method.critic or config.advantage in single
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
    """Raise `UserError` if a ratio is corrected twice, or there is none to correct.

    Also if a setting changes the whole reward, but gdpo compares its components.
    """
    weighing = WEIGHING & config.corrections.keys()
    if weighing and config.trust_sampler and has_ratio:
        raise UserError(
            f"{weighing.pop()} multiplies by π_θ/μ, and so does {method.name}, whose "
            "ratio is against the sampler: use a rule that only drops, for example "
            "token_reject"
        )
    if config.advantage == "gdpo" and (config.overlong_share or config.kl_in != "loss"):
        raise UserError(
            "gdpo cannot be combined with overlong_share or a KL in the reward: it "
            "compares the reward's components, which these do not change"
        )
    if config.router_shift and not has_ratio:
        raise UserError(
            f"router_shift multiplies the ratio, and {method.name} has none "
            "without correct=True"
        )
