"""Settings of a training run, in groups, checked when they are made.

`TrainConfig` has all of them. The defaults suit the `tiny` model in the arithmetic
world. None stands for the value that the algorithm's paper prescribes, or else "off".
"""

import os
from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from refimpl import corrections
from refimpl.advantages import NAMED
from refimpl.normalisers import NORMALISERS
from refimpl.validation import (
    Count,
    Nucleus,
    Positive,
    Seed,
    Share,
    UserError,
    Weight,
    checked,
    refuse_unknown,
)

# The names are the keys of these tables.
Normaliser: TypeAlias = Literal[tuple(NORMALISERS)]  # type: ignore[valid-type]
Advantage: TypeAlias = Literal[tuple(NAMED)]  # type: ignore[valid-type]
DType = Literal["float32", "bfloat16", "float64"]

# Width, layers, heads, width of the feed-forward, experts, experts per token.
PRESETS: dict[str, tuple[int, int, int, int, int, int]] = {
    "tiny": (64, 2, 4, 192, 0, 0),  # 0.1 M parameters: seconds on a laptop CPU
    "tiny-moe": (64, 2, 4, 64, 8, 2),  # 0.2 M, of which a token uses a third
    "small": (384, 8, 6, 1024, 0, 0),  # 14 M: for a GPU
    "small-moe": (384, 8, 6, 256, 16, 4),  # 43 M: for a GPU
}
Preset: TypeAlias = Literal[tuple(PRESETS)]  # type: ignore[valid-type]


@checked
class Rollouts:
    """Problems, and how responses to them are sampled."""

    seed: Seed = 0
    rollouts: Count = 40
    prompts_per_rollout: Count = 16
    group_size: Annotated[int, Field(ge=1, le=10_000)] = 8
    """responses to each prompt, G"""
    max_new_tokens: Count = 48
    """includes tokens that a task inserts"""
    max_turns: Count | None = None
    """turns per response, in a task with `observe`; None: no limit"""
    temperature: Positive = 1.0
    top_p: Nucleus | None = None
    """draw from the fewest most likely tokens with this total probability; None: all"""
    top_k: Count | None = None
    """draw from this many of the most likely tokens; None: all"""
    dynamic_sampling: bool | None = None
    """replace groups whose rewards are all equal, as DAPO does"""
    max_sampling_rounds: Count = 6
    """the most rounds of `prompts_per_rollout` prompts to fill a batch"""
    overlong_share: Share | None = None
    """L_cache / L_max of DAPO's Eq. 13; 0: no punishment"""
    overlong_filtering: bool = False
    """no loss on responses cut off at the limit"""


@checked
class Sampler:
    """A sampler that differs from π_old, as an inference engine does."""

    rollout_dtype: Literal["bfloat16", "float32", "int8"] | None = None
    """the sampler's dtype; None: `dtype`; int8: rounded weights, see `samplers`"""
    sampler_delay: Annotated[int, Field(ge=0)] = 0
    """rollouts by which its weights lag behind, as in asynchronous training"""
    trust_sampler: bool = False
    """use its log-probs as π_old's (two policies, not three), which saves a pass"""
    router_noise: Weight = 0.0
    """std of normal noise on the sampler's router logits"""
    corrections: dict = field(default_factory=dict)
    """rule → bound, such as token_truncate=2.0; `refimpl.corrections` has all rules"""


@checked
class Routing:
    """Settings for mixtures of experts."""

    replay: Literal["R2", "R3"] | None = None
    """R2: experts of π_old's pass; R3: those of the sampler"""
    router_shift: bool | None = None
    """RSPO's γ, for any method"""
    router_rate: Positive = 1.0
    """the routers' learning rate, in multiples of the others'"""


@checked
class Updates:
    """K optimiser steps per rollout, K = `minibatches` × `epochs`, and their loss."""

    minibatches: Count = 4
    """number of mini-batches in a rollout, each of whole groups"""
    epochs: Count = 1
    """passes over the rollout"""
    micro_batch_size: Count = 16
    """responses per pass; changes memory, not results"""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """sgd: the plain gradient, to see effects without Adam's normalisation"""
    learning_rate: Positive = 2e-4
    weight_decay: Weight = 0.0
    hyperparameters: dict = field(default_factory=dict)
    """those of the algorithm, such as tau_pos=4"""
    normaliser: Normaliser | None = None
    """how tokens are averaged, see `normalisers`; None: as in the paper"""
    advantage: Advantage | None = None
    """how rewards become advantages, see `advantages`; gae: with a critic, for any
    method; distillation: from a teacher; None: as in the paper"""
    max_length: Count | None = None
    """Dr. GRPO's constant, in tokens; None: `max_new_tokens`"""
    entropy_bonus: Weight = 0.0
    """c₂ of PPO's Eq. 9"""
    beta: Weight = 0.0
    """weight of the KL to the starting policy, by k3 in the loss; 0: none"""
    kl_in: Literal["loss", "reward"] = "loss"
    """reward: β times a token's KL is subtracted from its reward"""

    @property
    def updates_per_rollout(self) -> int:
        """K."""
        return self.minibatches * self.epochs


@checked
class Critic:
    """A value function, for PPO, SAO, or any method with `advantage="gae"`."""

    gamma: Share = 1.0
    """γ of GAE"""
    lam: Share = 0.95
    """λ of GAE"""
    lam_alpha: Positive | None = None
    """α of a λ that depends on the length l instead: λ = 1 − 1/(α l)"""
    lam_critic: Share | None = None
    """λ of the critic's targets; None: that of the advantages"""
    whiten: bool = True
    """shift and scale the advantages to mean 0 and std 1"""
    value_clip: Positive | None = 0.2
    """clip range of V, in units of the reward"""
    critic_learning_rate: Positive = 1e-3
    critic_updates: Count | None = None
    """the critic's steps per step of the policy; None: 1"""
    critic_warmup: Annotated[int, Field(ge=0)] = 0
    """rollouts at the start in which only the critic learns"""
    critic_frozen: tuple[str, ...] | None = None
    """weights of the critic that stay fixed, by parts of their names such as attn"""


@checked
class Measuring:
    """Measurements during training, which do not change the run."""

    eval_every: Count = 10
    """in rollouts; the last is always evaluated"""
    eval_problems: Count = 256
    eval_samples: Count = 1
    """k answers to each problem: mean@k, and for k ≥ 2 also pass@k"""


@checked
class Machine:
    """The device, and the precision of its numbers."""

    device: str = field(default_factory=lambda: os.environ.get("REFIMPL_DEVICE", "cpu"))
    """cuda for a GPU; default: the value of REFIMPL_DEVICE"""
    dtype: DType = "float32"
    """bfloat16: autocast, weights stay float32"""
    allow_on_policy: bool = False
    """accept K = 1, where the ratio is always 1"""


@checked
class TrainConfig(Machine, Measuring, Critic, Updates, Routing, Sampler, Rollouts):
    """All settings of a run, in the groups above; `train --help` lists them."""

    @property
    def truncated(self) -> bool:
        """True if the sampler may not draw every token."""
        return self.top_k is not None or self.top_p not in (None, 1)

    @property
    def mismatch(self) -> bool:
        """True if the sampler's log-probs differ too much from π_old's to replace them.

        In bfloat16, decoding and teacher forcing round differently, by more than GSPO's
        clip range. With top_k or top_p the sampler renormalises: π_old / μ ≤ 1 is the
        probability that the policy gives to all remaining tokens together.
        """
        rounded = self.rollout_dtype not in (None, self.dtype)
        if rounded or self.dtype == "bfloat16" or self.router_noise > 0:
            return True
        return self.truncated or self.sampler_delay > 0

    @property
    def sampling(self) -> dict:
        """The settings that `sample` and `evaluate` take, without the seed."""
        names = ("max_new_tokens", "max_turns", "temperature", "top_p", "top_k")
        return {name: getattr(self, name) for name in names}

    @property
    def longest(self) -> int:
        """The number of tokens that `normalisers.constant` divides by."""
        return self.max_length or self.max_new_tokens

    @property
    def needs_moe(self) -> list[str]:
        """The names of settings that have no effect on a dense model."""
        names = ["replay", "router_shift", "router_noise"]
        changed = names if self.router_rate == 1 else [*names, "router_rate"]
        return [name for name in changed if getattr(self, name)]

    def completed(self, training: Mapping) -> "TrainConfig":
        """Replace each None by the value that the algorithm's paper prescribes."""
        free = [f.name for f in fields(self) if f.default is None]
        refuse_unknown("training", training, free)
        missing = {n: v for n, v in training.items() if getattr(self, n) is None}
        return replace(self, **missing)

    def __post_init__(self):
        if self.corrections:
            corrections.check(self.corrections)
        if self.dtype == "float64" and self.rollout_dtype is not None:
            raise UserError(
                f"rollout_dtype {self.rollout_dtype!r} cannot be combined with dtype "
                "'float64': leave it off"
            )
        if self.prompts_per_rollout % self.minibatches:
            raise UserError(
                f"{self.prompts_per_rollout} prompts cannot be split into "
                f"{self.minibatches} equal mini-batches of whole groups; make "
                "prompts_per_rollout a multiple of minibatches"
            )
        if self.trust_sampler and self.replay == "R2":
            raise UserError(
                "with two policies (trust_sampler, or a method that needs it) there "
                "is no pass of π_old whose experts replay='R2' could replay: use "
                "replay='R3'"
            )
        if self.longest < self.max_new_tokens:
            raise UserError(
                f"max_length {self.max_length} must be at least max_new_tokens "
                f"{self.max_new_tokens}, the length of the longest possible response"
            )
