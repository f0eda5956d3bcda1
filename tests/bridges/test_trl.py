"""The bridge to TRL against TRL's own losses, and against ours outside of it.

TRL is heavy and moves fast, so it is not in requirements.txt:

    python -m pip install -r tests/bridges/requirements.txt
    python -m pip install --no-deps -r tests/bridges/no-deps.txt
    python -m pytest tests/bridges
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="TRL, verl, Liger: tests/bridges/requirements.txt")

from bridge_world import CASES, generation, steps_of, trainer_of
from torch.testing import assert_close
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from refimpl import UserError
from refimpl.advantages import group_centred
from refimpl.interop import trl as bridge
from refimpl.models import weights
from refimpl.moe import routed, routers

HERE = Path(__file__).parent


def trained(folder, settings=None, **given):
    trainer = trainer_of(folder, settings, **given)
    trainer.train()
    return trainer


# Against TRL's own losses

SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4}
SAME = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
    "gspo": {"loss_type": "grpo", "epsilon_high": 4e-4} | SEQUENCE,
}
"""TRL's settings with which its loss is the paper's."""


def pair(tmp_path, name, **common):
    """TRL's own and ours, after the same steps."""
    stock = trained(tmp_path / "stock", common | SAME[name], kind=GRPOTrainer)
    common |= {k: v for k, v in SAME[name].items() if k == "scale_rewards"}
    return stock, trained(tmp_path / "ours", common, algorithm=name)


def same_end(stock, ours):
    """Equal to the rounding of TRL's float32 log-probs, and far from the start."""
    start = weights(trainer_of(stock.args.output_dir).model)
    assert (weights(stock.model) - start).norm() > 0.1
    assert_close(weights(ours.model), weights(stock.model), rtol=0, atol=1e-5)
    assert max(row["ratio/max_deviation"] for row in steps_of(ours)) > 0.01
    for one, other in zip(steps_of(stock), steps_of(ours), strict=True):
        for what in ("loss", "entropy"):
            assert other[what] == pytest.approx(one[what], abs=1e-4)


ADDED = [
    {"beta": 0.1},
    {"beta": 0.1, "use_bias_correction_kl": False},
    {"entropy_coef": 0.05},
    {"off_policy_mask_threshold": 0.01},
    {"top_entropy_quantile": 0.3},
    {"mask_truncated_completions": True},
    {"scale_rewards": "batch"},
]
ACCUMULATED = {"gradient_accumulation_steps": 2}
RUNS = [(name, {}) for name in ("dr_grpo", "gspo", "sapo")]
RUNS += [("grpo", added) for added in ADDED]
RUNS += [("grpo", ACCUMULATED), ("dapo", ACCUMULATED)]


@pytest.fixture(scope="module")
def plain_grpo(tmp_path_factory):
    return weights(trained(tmp_path_factory.mktemp("plain"), algorithm="grpo").model)


@pytest.mark.parametrize(("name", "settings"), RUNS, ids=str)
def test_twenty_steps_end_where_trls_own_loss_ends(
    name, settings, tmp_path, plain_grpo
):
    """Whatever TRL adds, and where it accumulates gradients."""
    stock, ours = pair(tmp_path, name, **settings)
    same_end(stock, ours)
    if settings in ADDED:
        apart = (weights(ours.model) - plain_grpo).abs().max()
        assert apart > 1e-4, "the setting changed nothing: nothing was compared"


def test_gmpo_ends_where_trls_experimental_trainer_ends(tmp_path):
    theirs = {"kind": GMPOTrainer, "config": GMPOConfig}
    stock = trained(tmp_path / "a", {"epsilon": 0.4}, **theirs)
    same_end(stock, trained(tmp_path / "b", algorithm="gmpo"))


class Stopped(Exception):
    """Before a loss."""


def stopped_at(folder, step, **given):
    """A trainer in the middle of a run, and the inputs of its next loss."""
    trainer, seen = trainer_of(folder, **given), []
    real = trainer._compute_loss

    def watched(model, inputs):
        seen.append(inputs)
        if len(seen) > step:
            raise Stopped
        return real(model, inputs)

    trainer._compute_loss = watched
    with pytest.raises(Stopped):
        trainer.train()
    trainer._compute_loss = real
    return trainer, seen[-1]


@pytest.mark.parametrize("name", ["grpo", "cispo", "sapo", "gspo"])
def test_masks_of_tools_and_weights_of_vllm_are_taken_over(name, tmp_path):
    """By TRL's loss of the same weights and inputs; there is no vLLM here to ask."""
    trainer, inputs = stopped_at(tmp_path, 2, algorithm=name)
    stock = trainer_of(tmp_path, SAME[name], kind=GRPOTrainer)
    stock.model.train().load_state_dict(trainer.model.state_dict())
    stock.current_gradient_accumulation_steps = 1
    generator, losses = torch.Generator().manual_seed(0), set()
    drawn = torch.rand(inputs["completion_mask"].shape, generator=generator)
    extras = {"tool_mask": (drawn < 0.7).long()}, {"importance_sampling_ratio": drawn}
    for extra in ({}, *extras):
        given = {**inputs, **extra}
        mask = given["completion_mask"] * given.get("tool_mask", 1)
        given["num_items_in_batch"] = 4 * mask.sum()
        given["weight"] = trainer._weighted(given)["weight"] / 4
        for one in (trainer, stock):
            one.use_vllm = "importance_sampling_ratio" in extra
        ours, right = (t._compute_loss(t.model, given) for t in (trainer, stock))
        (g,) = torch.autograd.grad(ours, trainer.model.lm_head.weight)
        (h,) = torch.autograd.grad(right, stock.model.lm_head.weight)
        assert_close((ours, g), (right, h), rtol=0, atol=1e-6)
        losses.add(round(right.item(), 4))
    assert len(losses) == 3


# On several processes

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TWO += ["--nproc_per_node", "2"]


def ran(*words) -> str:
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [*map(str, words)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """Of each algorithm, on one process and on two."""
    folder = tmp_path_factory.mktemp("processes")
    for name, start in (("one", [sys.executable]), ("two", TWO)):
        ran(*start, HERE / "bridge_world.py", folder / name)
    return torch.load(folder / "one"), torch.load(folder / "two")


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_gradient_of_one(name, gradients):
    """Of both steps together, relative to its norm (TRL's log-probs are float32)."""
    (one, largest), (two, _) = (every[name] for every in gradients)
    assert largest > 0.005
    assert (one - two).abs().max() < 1e-6 * one.norm()


@pytest.mark.slow
def test_the_script_of_chapter_14_learns_the_sums():
    script = HERE.parents[1] / "notebooks" / "course" / "scaling_out" / "in_trl.py"
    rewards = json.loads(ran(*TWO, script).splitlines()[-1])
    assert len(rewards) == 20  # of four updates each
    assert rewards[0] < 0.6 and sum(rewards[-5:]) / 5 > 0.8, rewards


# Mixtures of experts


def by_hand(trainer, inputs):
    """RSPO's loss, row by row, each without padding."""
    values = []
    for row in range(len(inputs["prompt_ids"])):
        n = int(inputs["completion_mask"][row].sum())
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
        ids = torch.cat([prompt, inputs["completion_ids"][row, :n]])[None]
        width, start = inputs["prompt_ids"].shape[1], len(prompt)
        here = slice(width - start, width + n)
        experts = inputs["experts"][row : row + 1, here]
        with routed(trainer.model, experts=experts) as routing:
            logits = trainer.model(ids).logits[0]
        every = logits.log_softmax(-1)[start - 1 : -1]
        logp = every.gather(-1, ids[0, start:, None])[:, 0]
        moved = routing.log_probs(experts) - inputs["router_logp"][row : row + 1, here]
        gamma = (-moved.abs().mean((-1, -2))).exp().clamp(min=0.7)[0, start - 1 : -1]
        z = logp - inputs["old_per_token_logps"][row, :n] + gamma.detach().log()
        up = inputs["advantages"][row] > 0
        z = z.clamp(max=0.4) if up else z.clamp(min=-0.4)
        values.append(z.mean().exp() * inputs["advantages"][row])
    return -torch.stack(values).mean()


def test_rspo_in_trl_is_rspo(tmp_path):
    """In the fourth update of a rollout, whose routers have moved."""
    settings = {"router_aux_loss_coef": 0.0, "learning_rate": 1e-2}
    given = {"algorithm": "rspo", "replay": "R2", "settings": settings, "moe": True}
    trainer, inputs = stopped_at(tmp_path, 3, **given)
    ours, right = trainer._compute_loss(trainer.model, inputs), by_hand(trainer, inputs)
    assert_close(ours, right.to(ours.dtype), rtol=0, atol=1e-6)
    router = routers(trainer.model)[0].weight
    (g,) = torch.autograd.grad(ours, router, retain_graph=True)
    (h,) = torch.autograd.grad(right, router)
    assert h.norm() > 1e-3
    assert_close(g, h, rtol=0, atol=1e-6)
    for other in ({"placement": "after_clip"}, {"placement": None}, {"replay": None}):
        vars(trainer).update({"placement": "before_clip", "replay": "R2"} | other)
        assert (trainer._compute_loss(trainer.model, inputs) - ours).abs() > 1e-5


# Advantages and normalisers


def by_length(scored):
    """R − the group's mean weighted by length, as OPO's."""
    length, rewards = scored.mask.sum(-1).view(-1, 4), scored.rewards.view(-1, 4)
    mean = (length * rewards).sum(-1, keepdim=True) / length.sum(-1, keepdim=True)
    return (rewards - mean).flatten()


def later(scored):
    return group_centred(scored)[:, None] * torch.arange(scored.mask.shape[1])


def test_advantages_are_those_that_were_asked_for(tmp_path):
    asked = []

    def watched(scored):
        asked.append(scored)
        return by_length(scored)

    batch = generation(trainer_of(tmp_path, advantages=watched))
    (scored,) = asked
    assert scored.group.tolist() == [i // 4 for i in range(32)]
    mask = batch["completion_mask"]
    assert torch.equal(scored.mask[:, : mask.shape[1]], mask)
    assert scored.mask.shape == (32, 16) and scored.mask.sum() == mask.sum()
    assert_close(batch["advantages"], by_length(scored))
    assert scored.rewards.view(8, 4).std(-1).max() > 0.1
    batch = generation(trainer_of(tmp_path, advantages=later))
    assert batch["advantages"].shape == batch["completion_ids"].shape
    assert_close(batch["advantages"][:, 2] * 2, batch["advantages"][:, 4])


# What is refused

RSPO = {"algorithm": "rspo", "moe": True}
WRONG = [
    ({"use_liger_kernel": True}, {}, "never calls ours"),
    ({"loss_type": "cispo"}, {}, "loss_type='cispo' is a setting"),
    (SEQUENCE, {"algorithm": "gspo"}, "epsilon=0.0003 is a setting"),
    ({}, {"algorithm": "dr_grpo"}, "set scale_rewards='none'"),
    ({}, {"replay": "R3", "moe": True}, "replay must be 'R2' or None, got 'R3'"),
    ({"gradient_checkpointing": True}, RSPO, "outside the replay"),
    ({}, {"algorithm": "reinforce", "router_shift": True}, "set correct=True"),
    ({}, {"advantages": "loo"}, "advantages must be a function or None, got 'loo'"),
]


@pytest.mark.parametrize(("settings", "given", "message"), WRONG)
def test_what_cannot_be_meant_is_refused(settings, given, message, tmp_path):
    with pytest.raises(UserError, match=message):
        trainer_of(tmp_path, settings, **given)


def test_another_trl_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge.trl, "__version__", "1.17.0")
    with pytest.raises(UserError, match=r"tested with TRL 1\.16 .* this is 1\.17\.0"):
        trainer_of(tmp_path)
