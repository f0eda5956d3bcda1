"""From settings to objects: `prepare` makes the `Run` that the loop works with.

Whatever can be checked is checked here, once, before any work.
"""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import algorithms, logprobs, models, samples
from refimpl.advantages import CRITIC_FREE
from refimpl.algorithms import Algorithm
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
from refimpl.moe import Routing, can_be_recorded, drift, is_moe, routed, routers
from refimpl.normalisers import NORMALISERS
from refimpl.responses import DynamicSampling, Responses, once
from refimpl.rewards import check_rows, rows_of
from refimpl.rollout import Batch, Rollout
from refimpl.samplers import Delayed, Rounded
from refimpl.sampling import Policy, encode, sample
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic
from refimpl.validation import UserError, guarded, refuse_unknown, shown

CRITIC_LEARNING_RATE = 1e-3


@dataclass
class Run:
    """The objects of a training run.

    `config` is completed by what the method's paper prescribes, and `hyperparameters`
    are checked. `critic` and `reference` are None in a run that needs none.
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
    optimizer: torch.optim.Optimizer
    history: History
    # What happens at each step of the page
    fill_batch: Callable  # one round of responses, or dynamic sampling
    sampler: Policy
    log_probs: Callable  # f(model, rollout, temperature) → (logp, entropy)
    reads_old: bool  # π_old is read in a pass; else the sampler's log-probs are its
    advantages: Callable  # of a `Scored`
    normaliser: Callable  # of a mini-batch's mask
    corrections: list[Correction]
    loss_terms: list[Term]
    records_routing: bool  # the model is a mixture of experts with a router we can read
    zero_advantage_rows_matter: bool  # a term or objective acts where Â is 0, too
    by_group: bool = False  # `log_probs` reads a group's prompt once
    handed_in: list[str] = field(default_factory=list)  # objects beside the settings
    # Where the run stands
    batch: Batch | None = None  # of the latest rollout
    complete: bool = True  # all updates of the latest rollout are made
    stop_signal: int | None = None  # the signal that asked the run to end
    progress: bool = False  # show a bar, and samples as they come

    def last(self, step: int) -> bool:
        """True if the run ends with this rollout."""
        return step + 1 == self.config.rollouts or bool(self.stop_signal)

    @torch.no_grad()
    def constants(self, rollout: Rollout) -> dict[str, Tensor]:
        """Read what the K updates keep fixed, by its name in `Batch` or `Rollout`.

        log π_old comes from a training pass where the sampler's log-probs cannot stand
        for it, or where the experts are to be those of that pass (R2). log π_ref and
        V come from their own models.
        """
        found: dict[str, Tensor] = {}
        if self.reads_old:
            experts = rollout.experts if self.config.replay == "R3" else None
            found["old_logp"], _, routing = self.routed(rollout, experts)
            if routing:
                found |= routing.visits(len(rollout))._asdict()
        if self.reference is not None:
            found["ref_logp"], _ = self.log_probs_of(self.reference, rollout)
        if self.critic is not None:
            found["old_values"] = self.values(rollout)
        return found

    def read(self, rollout: Rollout) -> Reading:
        """Read a rollout with the policy, with its graph."""
        replayed = rollout.experts if self.config.replay else None
        logp, entropy, routing = self.routed(rollout, replayed)
        if torch.is_grad_enabled() and not logp.requires_grad:
            raise UserError(
                "log_probs must return logp with its gradient, not detached"
            )
        drifted = drift(rollout, routing) if routing else None
        return Reading(logp, entropy, drifted)

    def routed(
        self, rollout: Rollout, experts: Tensor | None
    ) -> tuple[Tensor, Tensor, Routing | None]:
        """Read a rollout with these experts replayed; what routers did, if recorded."""
        if not self.records_routing:
            return *self.log_probs_of(self.model, rollout), None
        with routed(self.model, experts=experts) as routing:
            logp, entropy = self.log_probs_of(self.model, rollout)
        return logp, entropy, routing

    def log_probs_of(self, model: Model, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Read a rollout with any model, in this run's precision."""
        with precision(model, self.config.dtype):
            found = self.log_probs(model, rollout, self.config.temperature)
        if not isinstance(found, tuple) or len(found) != 2:
            raise UserError(
                f"log_probs must return (logp, entropy), got {shown(found)}"
            )
        return found

    def values(self, rollout: Rollout) -> Float[Tensor, "B T"]:
        """The critic's values before each response token, in this run's precision."""
        with precision(self.model, self.config.dtype):
            return logprobs.values(self.critic, rollout)

    def show_samples(self, step: int, drawn: Responses) -> None:
        """Keep a few responses in the history, and print them."""
        kept = samples.chosen(
            step, drawn.prompts, drawn.texts, drawn.rewards.tolist(), drawn.group_size
        )
        self.history.samples += kept
        if self.progress:
            samples.show(kept, getattr(self.tokenizer, "all_special_tokens", ()))


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
) -> Run:
    """Check everything that can be checked, then build the run (see `train`)."""
    # The method, and the settings as its paper completes them.
    method = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    config, hyperparameters = check_fit(config or TrainConfig(), method)
    matters = method.acts_without_advantage(**hyperparameters)
    # The problems.
    task = Arithmetic() if task is None else task
    rows = rows_of(task, "sample", config.prompts_per_rollout)
    if not (callable(task.habit) and isinstance(task.habits, Collection)):
        raise UserError(
            "task.habit must be a function f(completion), and task.habits a list of "
            f"what it returns, got {shown(task.habit)} and {shown(task.habits)}"
        )
    rows += rows_of(task, "held_out", 8)
    reward = task.reward if reward is None else reward
    check_rows(reward, rows)
    # The policy, and the models beside it.
    if (model is None) != (tokenizer is None):
        raise UserError("give model and tokenizer together, or neither")
    device = models.pick_device(config.device)
    if model is None:
        model, tokenizer, _ = warm_start()
    prompts = [row["prompt"] for row in rows]
    encode(model, tokenizer, prompts, config.max_new_tokens)  # raises on a bad one
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    model = models.trainable_copy(model).to(device, dtype)
    if is_moe(model) and dtype == torch.float64:
        model.set_experts_implementation("eager")  # the fused one has no float64
    with models.one_thread(model):
        logprobs.check_sampling(model)
        asked = config.needs_moe
        records_routing = bool(asked or is_moe(model)) and can_be_recorded(model, asked)
        if log_probs is not logprobs.log_probs:
            check_reader(log_probs, model, tokenizer, prompts, config)
    critic = models.make_critic(model) if method.critic else None
    # The objects that the settings stand for, and those that were handed in.
    drawing = sampler_for(model, config, records_routing)
    if sampler is not None:
        drawing = sampler(drawing)
        if not isinstance(drawing, Policy):
            raise UserError(
                f"sampler must return a sampler of refimpl.samplers, got {drawing!r}"
            )
        drawing.sync()
    run = Run(
        algorithm=method,
        config=config,
        hyperparameters=hyperparameters,
        tokenizer=tokenizer,
        task=task,
        reward=reward,
        model=model,
        critic=critic,
        reference=None,
        optimizer=optimizer_for(model, critic, config),
        history=History(method.name, model=model),
        fill_batch=fill_batch_for(config),
        sampler=drawing,
        log_probs=log_probs,
        reads_old=(config.mismatch or sampler is not None) and not config.trust_sampler,
        advantages=CRITIC_FREE.get(config.advantage, method.advantages),
        normaliser=averaging(config, method),
        corrections=[*corrections_for(config, method.one_ratio), *corrections],
        loss_terms=[],
        records_routing=records_routing,
        zero_advantage_rows_matter=matters,
        by_group=getattr(log_probs, "by_group", False),
    )
    run.reads_old |= config.replay == "R2"
    run.loss_terms = [*loss_terms_for(run), *loss_terms]
    balances = [isinstance(term, LoadBalance) for term in run.loss_terms]
    # The load balance alone is content with the rows that are passed anyway.
    run.zero_advantage_rows_matter |= not all(balances)
    if config.beta > 0 or any(isinstance(term, KL) for term in run.loss_terms):
        run.reference = models.frozen_copy(model)
    given = [*corrections, *loss_terms] + [sampler] * (sampler is not None)
    run.handed_in = [getattr(x, "__qualname__", None) or repr(x) for x in given]
    return run


# Each setting's object


def fill_batch_for(config: TrainConfig) -> Callable:
    """One round of responses, or DAPO's dynamic sampling."""
    if not config.dynamic_sampling:
        return once
    return DynamicSampling(config.prompts_per_rollout, config.max_sampling_rounds)


def sampler_for(model: Model, config: TrainConfig, records: bool) -> Policy:
    """The policy itself, or a sampler that differs from it as an engine's does."""
    rounds = config.rollout_dtype == "int8"  # rounds weights; activations stay
    dtype = config.dtype if rounds else config.rollout_dtype or config.dtype
    drawing = Policy(model, dtype, config.router_noise, records)
    if config.sampler_delay:
        drawing = Delayed(drawing, config.sampler_delay)
    if rounds:
        drawing = Rounded(drawing)
    drawing.sync()
    return drawing


def averaging(config: TrainConfig, method: Algorithm) -> Callable:
    """The normaliser that is asked for, or the method's own."""
    return NORMALISERS[config.normaliser] if config.normaliser else method.normaliser


def corrections_for(config: TrainConfig, one_ratio: bool) -> list[Correction]:
    """The corrections of ratio or weight that the settings ask for."""
    asked: list[Correction] = []
    if config.corrections:
        asked.append(SamplerMismatch(config.corrections, config.trust_sampler))
    if config.router_shift:
        asked.append(RouterShift(config.placement, one_ratio, config.detach_shift))
    return asked


def loss_terms_for(run: Run) -> list[Term]:
    """The terms that settings, routers and a critic add to the loss."""
    config = run.config
    terms: list[Term] = []
    if run.records_routing:
        terms.append(LoadBalance())
    if config.beta > 0 and config.kl_in == "loss":
        terms.append(KL(config.beta, config.kl_estimator))
    if config.entropy_bonus:
        terms.append(Entropy(config.entropy_bonus))
    if run.critic is not None:
        terms.append(Value(run.values, config.value_clip))
    return terms


def optimizer_for(
    model: Model, critic: Model | None, config: TrainConfig
) -> torch.optim.Optimizer:
    """AdamW or SGD; routers and critic may have learning rates of their own."""
    rate = config.learning_rate
    faster = routers(model) if config.router_rate != 1 else []
    apart = [p for r in faster for p in r.parameters() if p.requires_grad]
    rest = [p for p in models.trained(model) if not any(p is q for q in apart)]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": rate}]
    if apart:
        groups.append({"params": apart, "lr": config.router_rate * rate})
    if critic is not None:
        groups.append({"params": critic.parameters(), "lr": CRITIC_LEARNING_RATE})
    common: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, **common)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), **common)


# Checks


def check_fit(config: TrainConfig, method: Algorithm) -> tuple[TrainConfig, dict]:
    """The settings as `method`'s paper completes them, and the hyperparameters.

    Raises `UserError` if the method cannot run like this.
    """
    refuse_unknown(f"{method.name}.training", method.training, vars(config))
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
    given = {"correct": True, **method.defaults, **hyperparameters}
    check_ratio(config, method, given["correct"])
    return config, hyperparameters


def takes_length(config: TrainConfig, method: Algorithm) -> bool:
    return "max_length" in inspect.signature(averaging(config, method)).parameters


NEEDS: dict[str, tuple[Callable[[TrainConfig, Algorithm], Any], str]] = {
    "advantage": (lambda c, m: not m.critic, "a method that has no critic"),
    "gamma lam": (  # a method of one's own may look at them
        lambda c, m: m.critic or m.advantages not in CRITIC_FREE.values(),
        "a method with a critic",
    ),
    "value_clip": (lambda c, m: m.critic, "a method with a critic"),
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
    """Raise `UserError` where a ratio is corrected twice, or there is none.

    Also where an advantage has no place for another setting.
    """
    weighing = WEIGHING & config.corrections.keys()
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


LARGEST_GAP = 0.05
"""Nats per token. Rounding stays below it in half precision, too; a sign, a shift by a
token or a forgotten temperature do not."""


@torch.no_grad()
def check_reader(
    log_probs: Callable,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    config: TrainConfig,
) -> None:
    """Raise `UserError` if a user's `log_probs` are not those of the policy.

    Without this a wrong sign, an offset by one token or a forgotten temperature trains
    to the end, on ratios that mean nothing.
    """
    settings = {**config.sampling, "max_new_tokens": min(8, config.max_new_tokens)}
    few, at = prompts[:2], config.temperature
    with precision(model, config.dtype):
        rollout = sample(model, tokenizer, few, group_size=2, **settings)
        right, _ = logprobs.log_probs(model, rollout, at)
        found = log_probs(model, rollout, at)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UserError(f"log_probs must return (logp, entropy), got {shown(found)}")
    logp = found[0]
    if logp.shape != right.shape:
        raise UserError(
            f"log_probs must return logp of shape {tuple(right.shape)}, got "
            f"{tuple(logp.shape)}"
        )
    gap = ((logp - right).abs().sum() / rollout.mask.sum()).item()
    if not gap < LARGEST_GAP:
        raise UserError(
            "log_probs are not those of the policy: they differ by "
            f"{gap:.2g} nats per token from logprobs.log_probs at temperature {at:g}. "
            "Look at the sign, the shift by one token, the temperature, and the order "
            "(logp, entropy)"
        )
