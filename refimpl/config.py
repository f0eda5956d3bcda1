"""Settings of a training run, checked when they are made."""

import math
from dataclasses import field, replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from refimpl import normalisers
from refimpl.algorithms import Algorithm
from refimpl.normalisers import NORMALISERS
from refimpl.rollout import Nucleus, Truncation
from refimpl.settings import Count, Positive, Seed, Share, Weight, checked

DType = Literal["float32", "bfloat16", "float64"]
Optimizer = Literal["adamw", "sgd"]


@checked
class TrainConfig:
    """Settings of a run. The defaults suit the `tiny` model in the arithmetic world.

    K, the updates per rollout, is `minibatches` × `epochs`. None stands for what the
    algorithm's paper makes part of the method, or for "off".
    """

    seed: Seed = 0
    # Rollouts
    rollouts: Count = 40
    prompts_per_rollout: Count = 16
    group_size: Count = 8
    """responses to each prompt, G"""
    max_new_tokens: Count = 48
    temperature: Positive = 1.0
    top_p: Nucleus | None = None
    """draw from the fewest most likely tokens with this much probability; None: all"""
    top_k: Count | None = None
    """draw from this many, the most likely; None: all"""
    min_p: Share | None = None
    """draw from tokens with this share of the largest probability; None: all"""
    dynamic_sampling: bool | None = None
    """DAPO's: groups of equal rewards are replaced; None: as the paper"""
    max_sampling_rounds: Count = 6
    """of `prompts_per_rollout` each, to fill a batch"""
    overlong_share: Share | None = None
    """L_cache / L_max of DAPO's Eq. 13; 0: no punishment; None: as the paper"""
    overlong_filtering: bool = False
    """no loss on responses cut off at the limit"""
    # A sampler that is not π_old, as an inference engine is
    rollout_dtype: DType | Literal["int8"] | None = None
    """the sampler's; None: `dtype`; int8: its weights are rounded, see `in_int8`"""
    sampler_delay: Annotated[int, Field(ge=0)] = 0
    """rollouts that its weights lag behind the policy's, as in asynchronous training"""
    trust_sampler: bool = False
    """take its log-probs for π_old's, whatever the difference; spares a pass"""
    router_noise: Weight = 0.0
    """std of normal noise on the sampler's router logits"""
    max_rollout_weight: Positive | None = None
    """cap of truncated importance sampling; None: off"""
    # Mixture of experts
    replay: Literal["R2", "R3"] | None = None
    """R2: experts of π_old's pass; R3: those of the sampler"""
    router_shift: bool | None = None
    """RSPO's γ; None: as the paper"""
    router_shift_floor: Annotated[float, Field(gt=0, le=1)] = 0.7
    """γ_min, the least weight that a token keeps; not published"""
    placement: Literal["before_clip", "after_clip"] = "before_clip"
    """of γ"""
    detach_shift: bool = True
    """False shows what the paper warns of"""
    router_rate: Positive = 1.0
    """the routers' learning rate, in multiples of the others'"""
    router_aux_loss: Weight = 1e-3
    """weight of the load-balancing loss, of each micro-batch by itself"""
    # Updates
    minibatches: Count = 4
    """a rollout is split into this many, by whole groups"""
    epochs: Count = 1
    """passes over the rollout"""
    micro_batch_size: Count = 16
    """responses per pass; changes memory, not results"""
    share_prompts: bool | None = None
    """read a prompt once for all its responses; None: where it pays"""
    gradient_checkpointing: bool = False
    """layers are computed again in the backward pass: less memory, same results"""
    optimizer: Optimizer = "adamw"
    """sgd: the plain gradient, for what rests on Adam's dividing by its size"""
    learning_rate: Positive = 2e-4
    warmup_updates: Annotated[int, Field(ge=0)] = 0
    """the learning rate rises linearly over these"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """how it then falls to 0, over all `rollouts` × K updates"""
    weight_decay: Weight = 0.0
    max_grad_norm: Positive = 1.0
    # Loss
    hyperparameters: dict = field(default_factory=dict)
    """the algorithm's"""
    normaliser: normalisers.Name | None = None
    """how tokens are averaged; None: as the paper"""
    max_length: Count | None = None
    """tokens; Dr. GRPO's constant; None: `max_new_tokens`"""
    entropy_bonus: Weight = 0.0
    """c₂ of PPO's Eq. 9"""
    beta: Weight = 0.0
    """weight of the KL to the starting policy; 0: none"""
    kl_in: Literal["loss", "reward"] = "loss"
    kl_estimator: Literal["k1", "k2", "k3", "k3+", "unbiased_k3"] = "k3"
    """of the KL in the loss, see `refimpl.kl`"""
    # Critic (PPO)
    gamma: Share = 1.0
    lam: Share = 0.95
    """λ of GAE"""
    critic_learning_rate: Positive = 1e-3
    value_clip: Positive | None = 0.2
    """reward units"""
    # Measuring
    eval_every: Count = 10
    """rollouts; the last is always evaluated"""
    eval_problems: Count = 256
    eval_samples: Count = 1
    """answers to each problem, k: mean@k, and from 2 on pass@k too"""
    samples_every: Annotated[int, Field(ge=0)] = 0
    """rollouts; a few responses are printed and kept; 0: never"""
    measure_drift: bool = False
    """how far the K updates went; see `drift.py`; costs one pass per rollout"""
    allow_on_policy: bool = False
    """accept K = 1, where the ratio is always 1"""
    # Machine
    device: str = "cpu"
    dtype: DType = "float32"
    """bfloat16: autocast, weights stay float32"""
    checkpoint_every: Count = 10
    """rollouts"""

    @property
    def updates_per_rollout(self) -> int:
        return self.minibatches * self.epochs

    def rate(self, done: int) -> float:
        """The share of the learning rate after `done` updates, W of them warm-up.

            (n + 1) / W  while n < W;    then, with x = (n − W) / (N − W):
            1 (constant)    1 − x (linear)    (1 + cos πx) / 2 (cosine)

        N is `rollouts` × K: the rate would be 0 at the update after the last.
        """
        warmup = self.warmup_updates
        if done < warmup or self.schedule == "constant":
            return min(1.0, (done + 1) / max(1, warmup))
        x = (done - warmup) / (self.rollouts * self.updates_per_rollout - warmup)
        x = min(x, 1.0)
        return 1 - x if self.schedule == "linear" else (1 + math.cos(math.pi * x)) / 2

    @property
    def mismatch(self) -> bool:
        """Whether the sampler's log-probs cannot stand for π_old's.

        In bfloat16 decoding and scoring round differently, by more than GSPO's clip.
        A sampler that leaves tokens out gives the others more than the policy does:
        π_old / π_rollout ≤ 1, the probability of those that it kept.
        """
        other = self.rollout_dtype not in (None, self.dtype)
        if other or self.router_noise > 0 or self.dtype == "bfloat16":
            return True
        return self.truncated or self.sampler_delay > 0

    @property
    def truncated(self) -> bool:
        """Whether the sampler leaves tokens out."""
        return Truncation(self.top_k, self.top_p, self.min_p).on

    @property
    def sampling(self) -> dict:
        """What `sample` and `evaluate` take from here, but for the seed."""
        names = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p")
        return {name: getattr(self, name) for name in names}

    @property
    def needs_moe(self) -> list[str]:
        """The settings that mean nothing on a dense model."""
        asked = {
            "replay": self.replay is not None,
            "router_shift": bool(self.router_shift),
            "router_noise": self.router_noise > 0,
            "router_rate": self.router_rate != 1,
        }
        return [name for name, on in asked.items() if on]

    def __post_init__(self):
        if self.rollout_dtype not in (None, self.dtype) and "float64" in (
            self.dtype,
            self.rollout_dtype,
        ):
            raise ValueError(
                f"rollout_dtype {self.rollout_dtype!r} with dtype {self.dtype!r}: only "
                "bfloat16, float32 and int8 weights can stand beside each other"
            )
        if self.prompts_per_rollout % self.minibatches:
            raise ValueError(
                f"{self.prompts_per_rollout} prompts cannot be split into "
                f"{self.minibatches} equal mini-batches of whole groups; make "
                "prompts_per_rollout a multiple of minibatches"
            )
        total = self.rollouts * self.updates_per_rollout
        if self.schedule != "constant" and self.warmup_updates >= total:
            raise ValueError(
                f"warmup_updates is {self.warmup_updates} and the run has only {total} "
                f"updates: the {self.schedule} schedule would never begin; warm up for "
                "fewer, or take schedule='constant'"
            )
        if self.trust_sampler and self.replay == "R2":
            raise ValueError(
                "trust_sampler spares the pass of π_old, and replay='R2' replays the "
                "experts of that pass: take replay='R3', or leave trust_sampler off"
            )
        if self.max_length is not None and self.max_length < self.max_new_tokens:
            raise ValueError(
                f"max_length {self.max_length} is below max_new_tokens "
                f"{self.max_new_tokens}: responses may be longer than the constant "
                "that divides them"
            )
        if not self.detach_shift and self.placement == "after_clip":
            raise ValueError(
                "detach_shift=False goes with placement='before_clip' only: there γ is "
                "part of the ratio, and its gradient that of the ratio"
            )

    def completed(self, algorithm: Algorithm) -> "TrainConfig":
        """This, with what the algorithm's paper prescribes in place of None."""
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
        whole = self.completed(algorithm)
        if whole.dynamic_sampling and self.group_size < 2:
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
        given = algorithm.check_hyperparameters(self.hyperparameters)
        # A method may make its ratio optional, by a hyperparameter `correct`.
        if whole.router_shift and not {**algorithm.defaults, **given}.get("correct", 1):
            raise ValueError(
                f"router_shift multiplies the ratio, and {algorithm.name} has none "
                "without correct=True"
            )

    def weight(self, algorithm: Algorithm, mask: Tensor, group: Tensor) -> Tensor:
        """The normaliser of a mini-batch: this run's, or else the paper's."""
        named = NORMALISERS.get(self.normaliser, algorithm.normaliser)
        longest = self.max_length or self.max_new_tokens
        return normalisers.apply(named, mask, group=group, max_length=longest)
