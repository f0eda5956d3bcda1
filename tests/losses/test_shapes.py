"""Every shape and type in a signature of refimpl, enforced while the code runs.

A subprocess imports the package under jaxtyping's import hook, by which beartype checks
the arguments and the result of each call against its annotations, with one meaning of
B and T per call (an int is a float, as PEP 484 has it). Then it runs the workloads.
"""

import pytest
import torch
from jaxtyping import TypeCheckError

from refimpl import advantages, curves, importance, kl, moe, normalisers
from refimpl.advantages import Scored
from refimpl.algorithms import ALGORITHMS, from_gate, value_loss
from refimpl.real import scoring as sharing
from tests.worlds import (
    fixed_noise,
    own_process,
    random_model,
    random_moe,
    small_run,
)


def a_batch(dtype=torch.float32, mask_dtype=torch.float32):
    """logp, old_logp, advantages (B,), mask: rows of 3, 0 and 4 tokens."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 3, 4, generator=generator).to(dtype)
    mask = (torch.arange(4) < torch.tensor([[3], [0], [4]])).to(mask_dtype)
    old_logp = -noise[0].abs()
    logp = (old_logp + noise[1]).requires_grad_()
    return logp, old_logp, noise[2, :, 0], mask


BATCHES = [a_batch(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
BATCHES += [a_batch(mask_dtype=t) for t in (torch.bool, torch.int64, torch.float64)]
GROUP = torch.tensor([0, 1, 0])


# The workloads


def losses():
    for algorithm in (*ALGORITHMS.values(), from_gate(lambda r, a: torch.ones_like(r))):
        for logp, old_logp, a, mask in BATCHES:
            weight = normalisers.constant(mask, 9)
            for given in (a, a[:, None].expand_as(logp)):
                algorithm.policy_loss(logp, old_logp, given, mask, weight)
        algorithm.acts_without_advantage()
        assert torch.isfinite(curves.curve(algorithm, -1.0).gate).all()
    for logp, old_logp, _, mask in BATCHES:
        value_loss(logp, old_logp, old_logp + 1, mask)
        value_loss(logp, old_logp, old_logp, mask, normalisers.token_mean(mask))


def weights():
    for logp, old_logp, _, mask in BATCHES:
        for function in normalisers.NORMALISERS.values():
            weight = normalisers.apply(function, mask, group=GROUP, max_length=9)
        importance.truncated_weight(old_logp, logp, mask, 3.0)
        gamma = (-old_logp.abs()).exp()
        for placement in moe.PLACEMENTS:
            for one_ratio in (True, False):
                moe.shifted(old_logp, weight, mask, gamma, placement, one_ratio)
        importance.log_ratio(logp, old_logp, mask)


def baselines():
    rewards, group = torch.tensor([1.0, 0.0, 0.5, 1.0]), torch.tensor([0, 0, 1, 1])
    for function in (advantages.group_relative, advantages.leave_one_out):
        for given in (rewards, rewards.double(), rewards.long()):
            function(Scored(given, group))
    for logp, old_logp, _, mask in BATCHES:
        found = advantages.gae(Scored(logp, GROUP, mask, old_logp))
        advantages.whiten(found, mask)


def divergences():
    for logp, old_logp, _, mask in BATCHES:
        ref_logp = old_logp - 0.2
        for estimator in kl.ESTIMATORS.values():
            estimator(logp, ref_logp, old_logp)
            estimator(logp[0, 0], ref_logp[0, 0], old_logp[0, 0])
        kl.token_rewards(old_logp[:, 0], logp, ref_logp, mask, 0.1)


def train_tiny(algorithm, model, **settings):
    """One rollout of 8 short responses and two updates of a random policy."""
    small = {"prompts_per_rollout": 2, "max_new_tokens": 8, "micro_batch_size": 3}
    small |= {"rollouts": 1, "eval_problems": 2, "reward": fixed_noise}
    small |= {"kl_estimator": "unbiased_k3", "entropy_bonus": 0.01}
    small |= {"log_probs": sharing.log_probs} if algorithm == "dapo" else {}
    small_run(algorithm, model=model, **(small | settings))


def training():
    model = random_model()
    train_tiny("ppo", model, beta=0.1, kl_in="reward", overlong_filtering=True)
    sampler = {"rollout_dtype": "int8", "sampler_delay": 1, "top_p": 0.9}
    train_tiny("grpo", model, beta=0.1, max_rollout_weight=2.0, **sampler)
    train_tiny("dapo", model, eval_samples=2, normaliser="group_token_mean")


def training_a_mixture():
    noise = {"router_noise": 0.1, "rollout_dtype": "bfloat16"}
    train_tiny("rspo", random_moe(), replay="R2", detach_shift=False, **noise)
    train_tiny("gspo", random_moe(), replay="R3", router_shift=True, **noise)


def wrong_shapes():
    """What the hook must refuse; the doors are in `test_bad_input`."""
    logp, old_logp, a, mask = a_batch()
    for call in (
        lambda: importance.ratio(logp.long()),
        lambda: moe.router_weights(logp, torch.zeros(2, 1).long()),
        lambda: kl.token_rewards(a[:2], logp, old_logp, mask, 0.1),
    ):
        with pytest.raises((TypeCheckError, ValueError)):
            call()


WORKLOADS = [losses, weights, baselines, divergences]
WORKLOADS += [training, training_a_mixture, wrong_shapes]


# In a subprocess

UNDER_THE_HOOK = """
import sys, types
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook
import transformers.models.qwen3.modeling_qwen3  # before the hook, which is slow
import transformers.models.qwen3_moe.modeling_qwen3_moe
sys.modules["checker"] = types.ModuleType("checker")
sys.modules["checker"].check = beartype(conf=BeartypeConf(is_pep484_tower=True))
with install_import_hook("refimpl", "checker.check"):
    from tests.losses import test_shapes
for workload in test_shapes.WORKLOADS:
    workload()
"""


def test_every_call_has_the_shapes_of_its_signature():
    done = own_process(UNDER_THE_HOOK, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr[-3000:]
