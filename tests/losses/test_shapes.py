"""Every shape and type in a signature of refimpl, enforced while the code runs.

A subprocess imports the package under jaxtyping's import hook, by which beartype checks
the arguments and the result of each call against its annotations, with one meaning of
B and T per call (an int is a float, as PEP 484 has it). Then it trains, and runs the
tests of the formulas, which call each with the types that it takes.
"""

import pytest

from refimpl.loss_terms import KL, RouterShift
from refimpl.pretrained import logprobs as sharing
from tests.worlds import fixed_noise, own_process, random_model, random_moe, small_run


def train_tiny(algorithm, model, **settings):
    """One rollout of 8 short responses and two updates of a random policy."""
    small = {"prompts_per_rollout": 2, "max_new_tokens": 8, "micro_batch_size": 3}
    small |= {"rollouts": 1, "eval_problems": 2, "reward": fixed_noise}
    small |= {"entropy_bonus": 0.01}
    small |= {"log_probs": sharing.log_probs} if algorithm == "dapo" else {}
    small_run(algorithm, model=model, **(small | settings))


def training():
    model = random_model()
    train_tiny("ppo", model, beta=0.1, kl_in="reward", overlong_filtering=True)
    sampler = {"rollout_dtype": "int8", "sampler_delay": 1, "top_p": 0.9}
    train_tiny(
        "grpo",
        model,
        loss_terms=[KL(0.1, "unbiased_k3")],
        corrections={"token_truncate": 2.0},
        **sampler,
    )
    train_tiny("dapo", model, eval_samples=2, normaliser="group_token_mean")
    noise = {"router_noise": 0.1, "rollout_dtype": "bfloat16"}
    moving = {"router_shift": False, "corrections": [RouterShift(detach=False)]}
    train_tiny("rspo", random_moe(), replay="R2", **moving, **noise)
    train_tiny("gspo", random_moe(), replay="R3", router_shift=True, **noise)


UNDER_THE_HOOK = """
import sys, types
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook
import transformers.models.qwen3.modeling_qwen3  # before the hook, which is slow
import transformers.models.qwen3_moe.modeling_qwen3_moe
sys.modules["checker"] = types.ModuleType("checker")
sys.modules["checker"].check = beartype(conf=BeartypeConf(is_pep484_tower=True))
with install_import_hook("refimpl", "checker.check"):
    from tests.losses import test_shapes
    test_shapes.training()
    sys.exit(pytest.main("-q -n 0 -o addopts= -p no:nbval".split() + sys.argv[1:]))
"""
PARTS = "hand_values kl advantages closed_forms credit"


@pytest.mark.ci
def test_every_call_has_the_shapes_of_its_signature():
    formulas = [f"tests/losses/test_{part}.py" for part in PARTS.split()]
    done = own_process(UNDER_THE_HOOK, *formulas, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
