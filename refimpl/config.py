"""Settings of a training run, checked when they are made."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from refimpl.algorithms import Algorithm
from refimpl.algorithms.base import PLACEMENTS
from refimpl.kl import ESTIMATORS

DTYPES = ("float32", "bfloat16", "float64")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run. The defaults suit the `tiny` model in the arithmetic world.

    K, the updates per rollout, is `minibatches` × `epochs`.
    """

    seed: int = 0
    # Rollouts
    rollouts: int = 40
    prompts_per_rollout: int = 16
    group_size: int = 8  # responses to each prompt, G
    max_new_tokens: int = 48
    temperature: float = 1.0
    dynamic_sampling: bool | None = None  # DAPO's; None: as the algorithm's paper
    max_sampling_rounds: int = 6  # of `prompts_per_rollout` each, to fill a batch
    overlong_share: float | None = None  # L_cache / L_max of Eq. 13; 0: no punishment
    overlong_filtering: bool = False  # no loss on responses cut off at the limit
    # A sampler that is not π_old, as an inference engine is
    rollout_dtype: str | None = None  # e.g. bfloat16; None: `dtype`
    router_noise: float = 0.0  # std of normal noise on the sampler's router logits
    max_rollout_weight: float | None = None  # truncated importance sampling; None: off
    # Mixture of experts
    replay: str | None = None  # R2: experts of π_old's pass; R3: those of the sampler
    router_shift: bool | None = None  # RSPO's γ; None: as the algorithm's paper
    router_shift_floor: float = 0.7  # γ_min; not published
    placement: str = "before_clip"  # of γ, or "after_clip"
    detach_shift: bool = True  # False shows what the paper warns of
    router_aux_loss: float = 1e-3  # weight; balances each micro-batch by itself
    # Updates
    minibatches: int = 4  # a rollout is split into this many, by whole groups
    epochs: int = 1  # passes over the rollout
    micro_batch_size: int = 16  # responses a pass; changes memory, not results
    learning_rate: float = 2e-4
    warmup_updates: int = 0  # learning rate rises linearly over these
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    # Loss
    hyperparameters: dict = field(default_factory=dict)  # the algorithm's
    entropy_bonus: float = 0.0  # c₂ of PPO Eq. 9
    beta: float = 0.0  # weight of the KL to the starting policy; 0: none
    kl_in: str = "loss"  # or "reward"
    kl_estimator: str = "k3"  # of the KL in the loss
    # Critic (PPO)
    gamma: float = 1.0
    lam: float = 0.95  # λ of GAE
    critic_learning_rate: float = 1e-3
    value_clip: float | None = 0.2  # reward units
    # Measuring
    eval_every: int = 10  # rollouts; the last is always evaluated
    eval_problems: int = 256
    allow_on_policy: bool = False  # accept K = 1, where the ratio is always 1
    # Machine
    device: str = "cpu"
    dtype: str = "float32"  # bfloat16: autocast, weights stay float32
    checkpoint_every: int = 10  # rollouts

    @property
    def updates_per_rollout(self) -> int:
        return self.minibatches * self.epochs

    @property
    def mismatch(self) -> bool:
        """Whether the sampler's log-probs cannot stand for π_old's.

        In bfloat16 decoding and scoring round differently, by more than GSPO's clip.
        """
        other = self.rollout_dtype not in (None, self.dtype)
        return other or self.router_noise > 0 or self.dtype == "bfloat16"

    @property
    def needs_moe(self) -> list[str]:
        """The settings that mean nothing on a dense model."""
        asked = {
            "replay": self.replay is not None,
            "router_shift": bool(self.router_shift),
            "router_noise": self.router_noise > 0,
        }
        return [name for name, on in asked.items() if on]

    def __post_init__(self):
        for name in (
            "rollouts prompts_per_rollout group_size max_new_tokens minibatches epochs "
            "micro_batch_size eval_every eval_problems checkpoint_every "
            "max_sampling_rounds"
        ).split():
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")
        for name in (
            "temperature learning_rate critic_learning_rate max_grad_norm"
        ).split():
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        for name in (
            "warmup_updates weight_decay entropy_bonus beta router_noise "
            "router_aux_loss"
        ).split():
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name} must be ≥ 0, got {value}")
        for name in (
            "allow_on_policy overlong_filtering detach_shift dynamic_sampling "
            "router_shift"
        ).split():
            value, default = getattr(self, name), type(self).__dict__[name]
            if not (isinstance(value, bool) or value is default):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        for name in ("gamma", "lam"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        if self.overlong_share is not None and not 0 <= self.overlong_share <= 1:
            raise ValueError(
                "overlong_share must lie in [0, 1], the part of max_new_tokens before "
                f"the limit in which a response is punished; got {self.overlong_share}"
            )
        for name, known in (
            ("kl_in", ("loss", "reward")),
            ("kl_estimator", tuple(ESTIMATORS)),
            ("dtype", DTYPES),
            ("rollout_dtype", (None, *DTYPES)),
            ("replay", (None, "R2", "R3")),
            ("placement", PLACEMENTS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
        if self.rollout_dtype not in (None, self.dtype) and "float64" in (
            self.dtype,
            self.rollout_dtype,
        ):
            raise ValueError(
                f"rollout_dtype {self.rollout_dtype!r} with dtype {self.dtype!r}: only "
                "bfloat16 and float32 can differ, because the weights are the same"
            )
        if not 0 < self.router_shift_floor <= 1:
            raise ValueError(
                "router_shift_floor must lie in (0, 1], the least weight that a token "
                f"keeps; got {self.router_shift_floor}"
            )
        cap = self.max_rollout_weight
        if cap is not None and not cap > 0:
            raise ValueError(f"max_rollout_weight must be > 0 or None, got {cap}")
        if self.value_clip is not None and not self.value_clip > 0:
            raise ValueError(f"value_clip must be > 0 or None, got {self.value_clip}")
        if self.prompts_per_rollout % self.minibatches:
            raise ValueError(
                f"{self.prompts_per_rollout} prompts cannot be split into "
                f"{self.minibatches} equal mini-batches of whole groups; make "
                "prompts_per_rollout a multiple of minibatches"
            )

    def completed(self, algorithm: Algorithm) -> "TrainConfig":
        """What is None set to what `algorithm`'s paper makes part of the method."""
        neutral = {
            "dynamic_sampling": False,
            "overlong_share": 0.0,
            "router_shift": False,
        }
        return replace(
            self,
            **{
                name: value
                for name, value in {**neutral, **algorithm.training}.items()
                if getattr(self, name) is None
            },
        )

    def check(self, algorithm: Algorithm) -> None:
        """Raise `ValueError` or `TypeError` if `algorithm` cannot run like this."""
        if self.completed(algorithm).dynamic_sampling and self.group_size < 2:
            raise ValueError(
                "dynamic_sampling keeps groups whose rewards differ: group_size must "
                f"be ≥ 2, got {self.group_size}"
            )
        if not algorithm.critic and self.group_size < 2:
            raise ValueError(
                f"{algorithm.name} compares the responses to one prompt: group_size "
                f"must be ≥ 2, got {self.group_size}"
            )
        if self.updates_per_rollout == 1 and not self.allow_on_policy:
            raise ValueError(
                "one update per rollout (minibatches × epochs = 1): the ratio is 1, "
                "every clip is inert, and all these methods coincide. Take more, or "
                "set allow_on_policy=True if that is what you want to show"
            )
        how = self.hyperparameters.get("aggregation", algorithm.aggregation)
        if how == "group_token_mean" and self.micro_batch_size % self.group_size:
            raise ValueError(
                "aggregation 'group_token_mean' needs micro-batches of whole groups: "
                f"micro_batch_size {self.micro_batch_size} is no multiple of "
                f"group_size {self.group_size}"
            )
        constant = self.hyperparameters.get("max_length", self.max_new_tokens)
        if how == "constant" and constant < self.max_new_tokens:
            raise ValueError(
                f"max_length {constant} is below max_new_tokens "
                f"{self.max_new_tokens}: responses may be longer than the constant "
                "that divides them"
            )
        shifted = self.completed(algorithm).router_shift
        correct = self.hyperparameters.get("correct", False)
        if shifted and algorithm.name == "reinforce" and not correct:
            raise ValueError(
                "router_shift multiplies the ratio, and reinforce has none without "
                "correct=True"
            )
        given = {k: v for k, v in self.hyperparameters.items() if k != "max_length"}
        algorithm.check_hyperparameters(given)
        # A loss on nothing raises on every hyperparameter that is out of range.
        zero, one = torch.zeros(2, 1), torch.ones(2, 1)
        algorithm.policy_loss(zero, zero, zero, one, **self.loss_arguments(zero[:, 0]))

    def loss_arguments(self, group: Tensor) -> dict:
        """What the loss needs beside the batch: groups, max_length, hyperparameters."""
        return {
            "group": group,
            "max_length": self.max_new_tokens,
            **self.hyperparameters,
        }
