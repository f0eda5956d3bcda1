"""Every shape and type in a signature of refimpl, enforced while the code runs.

A subprocess imports the package under jaxtyping's import hook, by which beartype checks
the arguments and the result of each call against its annotations, with one meaning of
B and T per call. Then it runs the workloads below.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

import refimpl
from refimpl import (
    advantages,
    curves,
    evaluation,
    importance,
    kl,
    models,
    moe,
    normalisers,
)
from refimpl.algorithms import ALGORITHMS, from_gate, value_loss
from refimpl.rollout import sample
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import make_tokenizer
from refimpl.trainer import TrainConfig, train

PACKAGE = Path(refimpl.__file__).parent
SHAPES = {"Float", "Int", "Bool", "Real", "Shaped", "Mask"}
pytestmark = pytest.mark.slow


def tiny_batch(dtype=torch.float32, mask_dtype=torch.float32):
    """logp, old_logp, advantages (B,), mask: rows of 3, 0 and 4 tokens."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 3, 4, generator=generator).to(dtype)
    mask = (torch.arange(4) < torch.tensor([[3], [0], [4]])).to(mask_dtype)
    old_logp = -noise[0].abs()
    logp = (old_logp + noise[1]).requires_grad_()
    return logp, old_logp, noise[2, :, 0], mask


def batches():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        yield tiny_batch(dtype)
    for mask_dtype in (torch.bool, torch.int64, torch.float64):
        yield tiny_batch(mask_dtype=mask_dtype)


# The workloads


def losses():
    gates = from_gate(lambda r, a: torch.ones_like(r))
    for algorithm in (*ALGORITHMS.values(), gates):
        for logp, old_logp, a, mask in batches():
            weight = normalisers.constant(mask, 9)
            for given in (a, a[:, None].expand_as(logp)):
                algorithm.policy_loss(logp, old_logp, given, mask, weight)
            if algorithm.normaliser is not normalisers.constant:
                algorithm.policy_loss(logp, old_logp, a, mask)
        algorithm.acts_without_advantage()
        for advantage in (1.0, -1.0):
            assert torch.isfinite(curves.curve(algorithm, advantage).gate).all()
    for logp, old_logp, _, mask in batches():
        value_loss(logp, old_logp, old_logp + 1, mask)
        value_loss(logp, old_logp, old_logp, mask, normalisers.token_mean(mask))


def weights():
    group = torch.tensor([0, 1, 0])
    for logp, old_logp, _, mask in batches():
        normalisers.seq_mean_token_mean(mask)
        normalisers.token_mean(mask)
        normalisers.group_token_mean(mask, group)
        normalisers.constant(mask, 9)
        for function in normalisers.NORMALISERS.values():
            weight = normalisers.apply(function, mask, group=group, max_length=9)
        importance.truncated_weight(old_logp, logp, mask, 3.0)
        gamma = (-old_logp.abs()).exp()
        for placement in moe.PLACEMENTS:
            for one_ratio in (True, False):
                moe.shifted(old_logp, weight, mask, gamma, placement, one_ratio)
        z = importance.log_ratio(logp, old_logp, mask)
        importance.ratio(z)
        importance.sequence_log_ratio(z, mask)
        importance.gspo_token_log_ratio(logp, z, mask)
        importance.largest_deviation(logp, old_logp, mask)


def baselines():
    rewards, group = torch.tensor([1.0, 0.0, 0.5, 1.0]), torch.tensor([0, 0, 1, 1])
    for function in (
        advantages.group_relative,
        advantages.group_centred,
        advantages.leave_one_out,
    ):
        for given in (rewards, rewards.double(), rewards.long()):
            function(given, group)
    for logp, old_logp, _, mask in batches():
        found, targets = advantages.gae(logp, old_logp, mask, 0.9, 0.5)
        assert found.shape == targets.shape == mask.shape
        advantages.whiten(found, mask)


def divergences():
    for logp, old_logp, _, mask in batches():
        ref_logp = old_logp - 0.2
        for estimator in kl.ESTIMATORS.values():
            estimator(logp, ref_logp, old_logp)
            estimator(logp[0, 0], ref_logp[0, 0], old_logp[0, 0])
        kl.k3_plus(logp, ref_logp)
        kl.token_rewards(old_logp[:, 0], logp, ref_logp, mask, 0.1)


def routing():
    """Of a mixture of experts, by itself: recorded, replayed, compared."""
    tokenizer = make_tokenizer()
    model, _, _ = warm_start(WarmStart(preset="tiny-moe"))
    generator = torch.Generator().manual_seed(0)
    with moe.routed(model, noise=0.1, generator=generator) as recorded:
        rollout = sample(model, tokenizer, ["1+1="], group_size=2, routing=recorded)
    moe.overlap(rollout.experts, rollout.experts)
    logits = torch.randn(2, 3, 4)
    moe.router_kl(logits, logits + 1)
    moe.try_out(model)


SMALL = {
    "rollouts": 1,
    "prompts_per_rollout": 4,
    "group_size": 4,
    "max_new_tokens": 24,
    "minibatches": 2,
    "micro_batch_size": 5,
    "eval_problems": 8,
}


def train_tiny(algorithm, preset="tiny", **settings):
    """One rollout of 16 responses and two updates, from the shipped policy."""
    model, tokenizer, _ = warm_start(WarmStart(preset=preset))
    given = {"model": model, "tokenizer": tokenizer, "progress": False}
    config = TrainConfig(**SMALL, **settings)
    with tempfile.TemporaryDirectory() as folder:
        train(algorithm, config=config, checkpoint_dir=Path(folder), **given)


def training_dense():
    train_tiny("grpo", beta=0.1, kl_estimator="unbiased_k3", entropy_bonus=0.01)
    train_tiny("sapo", measure_drift=True)
    train_tiny("dr_grpo", overlong_filtering=True, temperature=0.8)
    train_tiny("reinforce", rollout_dtype="bfloat16", max_rollout_weight=2.0)
    train_tiny("grpo", rollout_dtype="int8", sampler_delay=1, optimizer="sgd")


def training_with_dynamic_sampling():
    train_tiny("dapo", max_sampling_rounds=2, normaliser="group_token_mean")


def training_with_a_critic():
    train_tiny("ppo", beta=0.1, kl_in="reward")


def votes():
    scores = torch.tensor([[1.0, 0.0, 1.0, 0.0]]).double()
    evaluation.maj_at(scores, [["7", "8", "7", "9"]], 2)


def training_with_shared_prompts():
    train_tiny("grpo", share_prompts=True, top_p=0.9, eval_samples=2)


def training_a_mixture():
    train_tiny("rspo", "tiny-moe", replay="R2", router_noise=0.1)
    train_tiny("gspo", "tiny-moe", replay="R3", router_noise=0.1, router_shift=True)
    train_tiny("rspo", "tiny-moe", detach_shift=False)


def wrong_shapes():
    """What must not pass: the hook refuses the first few, and some check themselves."""
    logp, old_logp, a, mask = tiny_batch()
    left_to_the_hook = [
        lambda: importance.ratio(logp.long()),
        lambda: importance.ratio("z"),
        lambda: moe.router_weights(logp, torch.zeros(2, 1).long()),
        lambda: moe.router_weights(logp[0], torch.zeros(3, 1).long()),
        lambda: moe.Routing(logits=logp),
    ]
    checked = [
        lambda: importance.log_ratio(logp, old_logp[:, :3], mask),
        lambda: importance.sequence_log_ratio(logp[0], mask[0]),
        lambda: normalisers.group_token_mean(mask, torch.tensor([0, 1])),
        lambda: normalisers.group_token_mean(mask, torch.tensor([0.0, 1.0, 1.0])),
        lambda: normalisers.constant(mask, "9"),
        lambda: advantages.gae(logp, old_logp[:2], mask),
        lambda: advantages.group_relative(a, torch.zeros(2).long()),
        lambda: kl.token_rewards(a[:2], logp, old_logp, mask, 0.1),
        lambda: moe.shifted(old_logp, mask, mask, old_logp[:, :2].exp()),
        lambda: ALGORITHMS["grpo"].policy_loss(logp, old_logp, a, mask[:2]),
        lambda: ALGORITHMS["grpo"].policy_loss(logp, old_logp, a[:2], mask),
        lambda: curves.curve("grpo", 1.0, torch.ones(2, 3)),
        lambda: models.build("tiny", make_tokenizer(), seed="0"),
    ]
    for call in left_to_the_hook:
        with pytest.raises(TypeCheckError):
            call()
    for call in checked:
        with pytest.raises((TypeCheckError, ValueError)):
            call()


WORKLOADS = [
    losses,
    weights,
    baselines,
    divergences,
    routing,
    training_dense,
    training_with_dynamic_sampling,
    training_with_a_critic,
    votes,
    training_with_shared_prompts,
    training_a_mixture,
    wrong_shapes,
]


# In the subprocess


def annotated() -> set[tuple[str, str]]:
    """(file, qualified name) of every function with a tensor's shape in its signature.

    The experiments are left out: they are stored runs, not the library.
    """
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if "experiments" not in path.parts:
            file = path.relative_to(PACKAGE).as_posix()
            names = functions(ast.parse(path.read_text()))
            found |= {(file, name) for name, node in names if has_shape(node)}
    return found


def functions(node, prefix=""):
    """(qualified name, node) of every function below `node`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def has_shape(function: ast.FunctionDef) -> bool:
    own = function.args
    notes = [a.annotation for a in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    parts = [n for note in (*notes, function.returns) if note for n in ast.walk(note)]
    return any(isinstance(n, ast.Name) and n.id in SHAPES for n in parts)


def main():
    """Run all workloads; print their tracebacks and what was never called, as JSON."""
    called = set()

    def watch(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            file = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
            called.add((file, frame.f_code.co_qualname))

    failures = {}
    sys.setprofile(watch)
    for workload in WORKLOADS:
        try:
            workload()
            failures[workload.__name__] = ""
        except Exception:
            failures[workload.__name__] = traceback.format_exc()[-3000:]
    sys.setprofile(None)
    missed = sorted(":".join(one) for one in annotated() - called)
    print(json.dumps({"failures": failures, "missed": missed}))


# In the tests


@pytest.fixture(scope="module")
def enforced():
    code = (
        "from jaxtyping import install_import_hook\n"
        "with install_import_hook('refimpl', 'beartype.beartype'):\n"
        "    from tests.losses import test_shapes\n"
        "test_shapes.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("workload", [f.__name__ for f in WORKLOADS])
def test_every_call_has_the_shapes_of_its_signature(enforced, workload):
    assert enforced["failures"][workload] == ""


def test_every_signature_with_a_shape_was_called(enforced):
    """Else its annotations are prose: add the call to a workload above."""
    assert enforced["missed"] == []
