"""The bridge to TRL against TRL's own losses, and against ours outside of it.

TRL is heavy and moves fast, so it is not in requirements.txt:

    python -m pip install -r tests/bridges/requirements.txt
    python -m pip install --no-deps -r tests/bridges/no-deps.txt
    python -m pytest tests/bridges
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip(
    "trl", reason="TRL is not installed: tests/bridges/requirements.txt"
)

from bridge_world import steps_of, trainer_of
from torch.testing import assert_close
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from refimpl import moe
from refimpl.advantages import group_centred, leave_one_out
from refimpl.algorithms import ALGORITHMS, from_gate
from refimpl.evaluation import evaluate
from refimpl.interop import trl as bridge
from refimpl.interop.trl import RefimplGRPOTrainer
from refimpl.models import weights
from refimpl.normalisers import NORMALISERS
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import Arithmetic

HERE = Path(__file__).parent


def trained(kind, folder, settings=None, **own):
    trainer = trainer_of(kind, folder, settings, **own)
    trainer.train()
    return trainer


# Against TRL's own losses

# TRL's settings, and ours, of one method.
SAME = {
    "grpo": ({"loss_type": "grpo"}, {}),
    "dr_grpo": ({"loss_type": "dr_grpo", "scale_rewards": "none"}, {}),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, {}),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 5.0}, {"max_ratio": 5.0}),
    "sapo": ({"loss_type": "sapo"}, {}),
    "gspo": (
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
        },
        {},
    ),
}
COMMON = ("scale_rewards",)


def pair(tmp_path, name, **common):
    """TRL's own and ours, after the same steps."""
    theirs, hyperparameters = SAME[name]
    ours = common | {k: v for k, v in theirs.items() if k in COMMON}
    stock = trained(GRPOTrainer, tmp_path / "stock", common | theirs)
    own = {"algorithm": name, "hyperparameters": hyperparameters}
    return stock, trained(RefimplGRPOTrainer, tmp_path / "ours", ours, **own)


def same_end(stock, ours):
    """Equal to the rounding of TRL's float32 log-probs, and far from the start."""
    start = weights(trainer_of(GRPOTrainer, stock.args.output_dir).model)
    assert (weights(stock.model) - start).norm() > 0.1
    assert_close(weights(ours.model), weights(stock.model), rtol=0, atol=1e-5)
    assert max(row["ratio/max_deviation"] for row in steps_of(ours)) > 0.01
    for one, other in zip(steps_of(stock), steps_of(ours), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-4)
        assert other["entropy"] == pytest.approx(one["entropy"], abs=1e-4)


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("name", SAME)
def test_twenty_steps_end_where_trls_own_loss_ends(name, accumulated, tmp_path):
    same_end(*pair(tmp_path, name, gradient_accumulation_steps=accumulated))


def test_gmpo_ends_where_trls_experimental_trainer_ends(tmp_path):
    stock = trained(GMPOTrainer, tmp_path / "a", {"epsilon": 0.4}, config=GMPOConfig)
    same_end(stock, trained(RefimplGRPOTrainer, tmp_path / "b", algorithm="gmpo"))


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.1},
        {"beta": 0.1, "use_bias_correction_kl": False},
        {"entropy_coef": 0.05},
        {"off_policy_mask_threshold": 0.01},
        {"top_entropy_quantile": 0.5},
        {"mask_truncated_completions": True},
        {"scale_rewards": "batch"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_what_trl_adds_is_as_trl_has_it(name, settings, tmp_path):
    plain = trained(RefimplGRPOTrainer, tmp_path / "plain", algorithm=name)
    stock, ours = pair(tmp_path, name, **settings)
    same_end(stock, ours)
    apart = (weights(ours.model) - weights(plain.model)).abs().max()
    assert apart > 1e-4, "the setting changed nothing: nothing was compared"


class Kept(Exception):
    """A batch at r ≠ 1, and the trainer that was about to learn from it."""


def stopped_at(kind, folder, step, **own):
    """A trainer in the middle of a run, and the inputs of its next loss."""
    trainer = trainer_of(kind, folder, **own)
    real, seen = trainer._compute_loss, []

    def watched(model, inputs):
        seen.append(inputs)
        if len(seen) > step:
            raise Kept
        return real(model, inputs)

    trainer._compute_loss = watched
    with pytest.raises(Kept):
        trainer.train()
    trainer._compute_loss = real
    return trainer, seen[-1]


@pytest.mark.parametrize("name", ["grpo", "cispo", "sapo", "gspo"])
def test_masks_of_tools_and_weights_of_vllm_are_taken_over(name, tmp_path):
    """By TRL's loss of the same weights and inputs; there is no vLLM here to ask."""
    trainer, inputs = stopped_at(RefimplGRPOTrainer, tmp_path, 2, algorithm=name)
    theirs, _ = SAME[name]
    stock = trainer_of(GRPOTrainer, tmp_path, theirs)
    stock.model.load_state_dict(trainer.model.state_dict())
    stock.current_gradient_accumulation_steps = 1
    generator = torch.Generator().manual_seed(0)
    shape = inputs["completion_mask"].shape
    tools = (torch.rand(shape, generator=generator) < 0.7).long()
    vllm = 0.5 + torch.rand(shape, generator=generator)
    losses = []
    for extra in ({}, {"tool_mask": tools}, {"importance_sampling_ratio": vllm}):
        given = {**inputs, **extra}
        mask = given["completion_mask"] * given.get("tool_mask", 1)
        given["num_items_in_batch"] = 4 * mask.sum()
        given["weight"] = trainer._whole_weight({**given, "completion_mask": mask}) / 4
        for one in (trainer, stock):
            one.use_vllm = "importance_sampling_ratio" in extra
        ours, right = (t._compute_loss(t.model, given) for t in (trainer, stock))
        (g,) = torch.autograd.grad(ours, trainer.model.lm_head.weight)
        (h,) = torch.autograd.grad(right, stock.model.lm_head.weight)
        assert_close(ours, right, rtol=0, atol=1e-6)
        assert_close(g, h, rtol=0, atol=1e-6)
        losses.append(right.item())
    assert len({round(x, 4) for x in losses}) == 3


# On several processes


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """Of each algorithm and accumulation, on one process and on two."""
    folder = tmp_path_factory.mktemp("processes")
    path = os.pathsep.join([str(HERE.parents[1]), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    two = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    found = []
    for name, start in (("one", [sys.executable]), ("two", two)):
        out = folder / name
        done = subprocess.run(
            [*start, str(HERE / "processes.py"), str(out)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(torch.load(out))
    return found


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_have_the_gradient_of_one(name, accumulated, gradients):
    """Of both steps together, relative to its norm (TRL's log-probs are float32)."""
    (one, largest), (two, _) = (found[name, accumulated] for found in gradients)
    assert largest > 0.01
    assert (one - two).abs().max() < 1e-6 * one.norm()


# Mixtures of experts


def by_hand(trainer, inputs, floor):
    """RSPO's loss, row by row, each without padding."""
    values = []
    for row in range(len(inputs["prompt_ids"])):
        n = int(inputs["completion_mask"][row].sum())
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
        ids = torch.cat([prompt, inputs["completion_ids"][row, :n]])[None]
        width, start = inputs["prompt_ids"].shape[1], len(prompt)
        own = slice(width - start, width + n)
        experts = inputs["experts"][row : row + 1, own]
        with moe.routed(trainer.model, experts=experts) as routing:
            logits = trainer.model(ids).logits[0]
        every = logits.log_softmax(-1)[start - 1 : -1]
        logp = every.gather(-1, ids[0, start:, None])[:, 0]
        moved = routing.log_probs(experts) - inputs["router_logp"][row : row + 1, own]
        gamma = (-moved.abs().mean((-1, -2))).exp().clamp(min=floor)[0, start - 1 : -1]
        z = logp - inputs["old_per_token_logps"][row, :n] + gamma.detach().log()
        up = inputs["advantages"][row] > 0
        z = z.clamp(max=0.4) if up else z.clamp(min=-0.4)
        values.append(z.mean().exp() * inputs["advantages"][row])
    return -torch.stack(values).mean()


@pytest.mark.parametrize("floor", [0.7, 0.999])
def test_rspo_in_trl_is_rspo(floor, tmp_path):
    """In the fourth update of a rollout, whose routers have moved."""
    own = {"algorithm": "rspo", "replay": "R2", "router_shift_floor": floor}
    settings = {"router_aux_loss_coef": 0.0, "learning_rate": 5e-3}
    trainer, inputs = stopped_at(
        RefimplGRPOTrainer, tmp_path, 3, settings=settings, moe=True, **own
    )
    ours = trainer._compute_loss(trainer.model, inputs)
    right = by_hand(trainer, inputs, floor)
    assert_close(ours, right.to(ours.dtype), rtol=0, atol=1e-6)
    router = moe.routers(trainer.model)[0].weight
    (g,) = torch.autograd.grad(ours, router, retain_graph=True)
    (h,) = torch.autograd.grad(right, router)
    assert h.norm() > 1e-3
    assert_close(g, h, rtol=0, atol=1e-6)
    trainer.shift = (0.5 if floor > 0.9 else 1.0, "before_clip")
    assert (trainer._compute_loss(trainer.model, inputs) - ours).abs() > 1e-4


def test_replay_visits_the_experts_of_the_old_policy(tmp_path):
    settings = {"learning_rate": 2e-2}
    own = {"algorithm": "grpo", "replay": "R2", "moe": True, "settings": settings}
    trainer, inputs = stopped_at(RefimplGRPOTrainer, tmp_path, 3, **own)
    seen, real = [], moe.routed

    def watched(*arguments, **keywords):
        seen.append(keywords["experts"])
        return real(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge.moe, "routed", watched)
        replayed = trainer._compute_loss(trainer.model, inputs)
    assert torch.equal(seen[0], inputs["experts"])
    trainer.replay = None
    free = trainer._compute_loss(trainer.model, inputs)
    assert (replayed - free).abs() > 1e-5


def test_the_references_pass_is_not_taken_for_the_old_policys(tmp_path):
    model = warm_start(WarmStart(preset="tiny-moe"))[0]  # TRL reads it again
    own = {"algorithm": "rspo", "model": model}
    plain, other = (
        stopped_at(RefimplGRPOTrainer, tmp_path, 0, settings=settings, **own)[1]
        for settings in ({}, {"beta": 0.1})
    )
    assert torch.equal(plain["experts"], other["experts"])
    assert_close(plain["router_logp"], other["router_logp"])


def test_a_generation_used_once_has_nothing_to_replay(tmp_path):
    """TRL then makes no pass of π_old: π_old is the policy."""
    settings = {"steps_per_generation": 1, "max_steps": 2}
    trainer, inputs = stopped_at(
        RefimplGRPOTrainer, tmp_path, 1, settings=settings, moe=True, algorithm="rspo"
    )
    assert "experts" not in inputs and "old_per_token_logps" not in inputs
    assert trainer._compute_loss(trainer.model, inputs).isfinite()


# Advantages and normalisers


def given_advantages(tmp_path, advantages, **settings):
    trainer = trainer_of(
        RefimplGRPOTrainer, tmp_path, settings, advantages=advantages, algorithm="grpo"
    )
    rows = [next(iter(trainer.get_train_dataloader()))][0]
    return trainer, trainer._generate_and_score_completions(rows)


def test_advantages_are_those_that_were_asked_for(tmp_path):
    asked = {}

    def watched(rewards, group):
        asked.update(rewards=rewards, group=group)
        return leave_one_out(rewards, group)

    _, batch = given_advantages(tmp_path, watched)
    rewards = asked["rewards"].view(-1, 4)
    assert asked["group"].tolist() == [i // 4 for i in range(32)]
    others = (rewards.sum(-1, keepdim=True) - rewards) / 3
    assert_close(batch["advantages"], (rewards - others).flatten().float())
    assert rewards.std(-1).max() > 0.1


def test_advantages_may_differ_from_token_to_token(tmp_path):
    def later(rewards, group):
        return group_centred(rewards, group)[:, None] * torch.arange(16)

    _, batch = given_advantages(tmp_path, later)
    width = batch["completion_ids"].shape[1]
    assert batch["advantages"].shape == (32, width)
    assert_close(batch["advantages"][:, 2] * 2, batch["advantages"][:, 4])


@pytest.mark.parametrize("shape", [(31,), (32, 15), (32, 16, 1), ()])
def test_advantages_of_another_shape_are_refused(shape, tmp_path):
    with pytest.raises(ValueError, match=r"must return \(32,\).* or \(32, 16\)"):
        given_advantages(tmp_path, lambda rewards, group: torch.zeros(shape))


@pytest.mark.parametrize("name", NORMALISERS)
def test_a_generations_weights_are_the_normalisers(name, tmp_path):
    trainer = trainer_of(RefimplGRPOTrainer, tmp_path, normaliser=name)
    rows = next(iter(trainer.get_train_dataloader()))
    batch = trainer._generate_and_score_completions(rows)
    mask = batch["completion_mask"].double()
    wanted = {
        "seq_mean_token_mean": mask / mask.sum(-1, keepdim=True) / 32,
        "token_mean": mask / mask.sum(),
        "constant": mask / 16 / 32,
        "group_token_mean": mask
        / mask.view(8, -1).sum(-1).repeat_interleave(4)[:, None]
        / 8,
    }[name]
    assert_close(batch["weight"].double(), wanted, rtol=1e-6, atol=0)
    assert mask.sum(-1).unique().numel() > 3


# What is refused

WRONG = {
    "liger": ({"use_liger_kernel": True}, {}, "never asks for ours"),
    "loss type": ({"loss_type": "cispo"}, {}, "contradicts grpo"),
    "epsilon": ({"epsilon": 0.1}, {}, "epsilon=0.1 is a setting of TRL's own loss"),
    "level": (
        {"importance_sampling_level": "sequence"},
        {"algorithm": "gspo"},
        "importance_sampling_level",
    ),
    "std": ({}, {"algorithm": "dr_grpo"}, "set scale_rewards='none'"),
    "dense": ({}, {"algorithm": "rspo"}, "needs a mixture of experts.* take gmpo"),
    "dense replay": ({}, {"replay": "R2"}, "needs a mixture of experts"),
    "R3": ({}, {"replay": "R3", "moe": True}, "R3 cannot be had"),
    "checkpointing": (
        {"gradient_checkpointing": True},
        {"algorithm": "rspo", "moe": True},
        "outside of the replay",
    ),
    "hyperparameter": ({}, {"hyperparameters": {"epsilon": -1}}, "epsilon"),
    "algorithm": ({}, {"algorithm": "gprpo"}, "did you mean 'grpo'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_would_be_ignored_is_refused(case, tmp_path):
    settings, own, message = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=message):
        trainer_of(RefimplGRPOTrainer, tmp_path, settings, **own)


def test_groups_that_are_split_over_processes_are_refused(tmp_path):
    """Of two processes with six responses each the second group has two in both."""
    trainer = trainer_of(RefimplGRPOTrainer, tmp_path, normaliser="group_token_mean")
    trainer.args.per_device_train_batch_size = 3
    trainer.args.steps_per_generation = 2
    with pytest.raises(ValueError, match=r"has 6 responses, and groups of 4 are split"):
        bridge.refused.split_groups(trainer)
    trainer.args.steps_per_generation = 4
    bridge.refused.split_groups(trainer)
    trainer.args.per_device_eval_batch_size, trainer.num_generations_eval = 6, 4
    bridge.refused.split_groups(trainer)  # nothing is evaluated
    trainer.args.eval_strategy = "steps"
    with pytest.raises(ValueError, match="Make per_device_eval_batch_size a multiple"):
        bridge.refused.split_groups(trainer)


def test_a_trainer_looks_for_split_groups_when_it_is_made(tmp_path, monkeypatch):
    """On one process TRL itself lets no such sizes through."""

    def found(trainer):
        raise ValueError(f"split: {trainer.num_generations}")

    monkeypatch.setattr(bridge.refused, "split_groups", found)
    with pytest.raises(ValueError, match="split: 4"):
        trainer_of(RefimplGRPOTrainer, tmp_path)


@pytest.mark.parametrize("version", ["1.15.0", "1.17.0", "2.0.0"])
def test_another_trl_is_refused_by_name(version, tmp_path, monkeypatch):
    monkeypatch.setattr(bridge.refused.trl, "__version__", version)
    with pytest.raises(
        ImportError, match=rf"tested with TRL 1\.16 .* this is {version}"
    ):
        trainer_of(RefimplGRPOTrainer, tmp_path)


def test_a_gate_that_is_not_finite_is_named(tmp_path):
    gate = from_gate(lambda r, advantages: 1 / (r - r), "broken")
    with pytest.raises(ValueError, match="the gate is inf at r = 1"):
        trained(RefimplGRPOTrainer, tmp_path, algorithm=gate)


def test_dapos_other_parts_are_said_to_be_missing(tmp_path):
    with pytest.warns(UserWarning, match="dynamic sampling"):
        trainer_of(RefimplGRPOTrainer, tmp_path, algorithm="dapo")


def test_our_metrics_stand_beside_trls(tmp_path):
    trainer = trained(RefimplGRPOTrainer, tmp_path, {"entropy_coef": 0.01})
    rows = steps_of(trainer)
    assert any(row["clip_ratio/region_mean"] > 0 for row in rows)
    assert all("clip_ratio/high_max" not in row for row in rows)
    assert all(row["policy_loss"] == row["policy_loss"] for row in rows)
    soft = trained(RefimplGRPOTrainer, tmp_path, algorithm="sapo")
    assert all("clip_ratio/region_mean" not in row for row in steps_of(soft))


# What could not be scored, seen or computed


def test_a_response_without_a_score_counts_in_no_baseline(tmp_path):
    """As in TRL: it has Â = 0, and the others are compared among themselves."""

    def sometimes(completions, **_):
        return [None if n % 4 == 1 else float(n % 3) for n in range(len(completions))]

    found = []
    for own in ({}, {"advantages": group_centred}):
        settings = {"scale_rewards": "none"}
        trainer = trainer_of(
            RefimplGRPOTrainer, tmp_path, settings, reward_funcs=sometimes, **own
        )
        rows = next(iter(trainer.get_train_dataloader()))
        found.append(trainer._generate_and_score_completions(rows)["advantages"])
    assert found[1][1::4].abs().max() == 0 and found[1].abs().max() > 0.5
    kept = torch.arange(32) % 4 != 1
    assert_close(found[1][kept], found[0][kept])
    trainer.own_advantages = lambda rewards, group: torch.ones(32)
    rows = next(iter(trainer.get_train_dataloader()))
    ones = trainer._generate_and_score_completions(rows)["advantages"]
    assert torch.equal(ones.bool(), kept)


def test_reinforce_keeps_its_own_advantages_and_ppo_says_what_it_lacks(tmp_path):
    assert (
        trainer_of(RefimplGRPOTrainer, tmp_path, algorithm="reinforce").own_advantages
        is leave_one_out
    )
    with pytest.warns(UserWarning, match="TRL has no critic: ppo is its clipped loss"):
        trainer_of(RefimplGRPOTrainer, tmp_path, algorithm="ppo")


def test_settings_of_trls_advantages_are_refused_beside_ones_own(tmp_path):
    settings = {"multi_objective_aggregation": "normalize_then_sum"}
    with pytest.raises(ValueError, match="part of TRL's own advantages"):
        trainer_of(RefimplGRPOTrainer, tmp_path, settings, advantages=group_centred)


def test_pictures_are_refused_where_routing_is_recorded(tmp_path):
    trainer = trainer_of(RefimplGRPOTrainer, tmp_path, moe=True, algorithm="rspo")
    trainer._passes = []
    ids = torch.ones(2, 3, dtype=torch.long)
    given = trainer.model, ids, torch.ones_like(ids), 2
    score = trainer._get_per_token_logps_and_entropies
    assert score(*given, num_images=None)[0].shape == (2, 2)
    trainer._passes = []
    with pytest.raises(ValueError, match="text alone, got pixel_values"):
        score(*given, pixel_values=torch.zeros(1))


def test_a_ratio_that_overflows_leaves_the_loss_finite(tmp_path):
    """TRL's exp(z) is ∞ there, and ∞ · 0 is NaN."""
    trainer, inputs = stopped_at(RefimplGRPOTrainer, tmp_path, 2, algorithm="sapo")
    inputs["old_per_token_logps"] = inputs["old_per_token_logps"] - 1000
    loss = trainer._compute_loss(trainer.model, inputs)
    (g,) = torch.autograd.grad(loss, trainer.model.lm_head.weight)
    assert loss.isfinite() and g.isfinite().all()


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_an_evaluation_has_trls_loss(name, tmp_path):
    theirs, _ = SAME[name]
    found = []
    for kind, settings, own in (
        (GRPOTrainer, theirs, {}),
        (RefimplGRPOTrainer, {}, {"algorithm": name}),
    ):
        settings = settings | {"per_device_eval_batch_size": 8}
        trainer = trainer_of(kind, tmp_path, settings, **own)
        torch.manual_seed(0)
        found.append(trainer.evaluate(trainer.train_dataset.select(range(4))))
    assert found[1]["eval_loss"] == pytest.approx(found[0]["eval_loss"], abs=1e-6)
    assert found[1]["eval_entropy"] == pytest.approx(found[0]["eval_entropy"], abs=1e-5)


def test_arguments_may_stand_where_trl_has_them(tmp_path):
    trainer = trainer_of(RefimplGRPOTrainer, tmp_path)
    again = RefimplGRPOTrainer(
        trainer.model,
        trainer.reward_funcs,
        trainer.args,
        trainer.train_dataset,
        processing_class=trainer.processing_class,
    )
    assert again.args.max_steps == 20 and again.train_dataset is not None


# It learns

LONG = {
    "per_device_train_batch_size": 16,
    "num_generations": 8,
    "steps_per_generation": 4,
    "max_completion_length": 48,
    "learning_rate": 2e-4,
    "lr_scheduler_type": "constant",
    "max_steps": 160,
    "logging_steps": 40,
}


def accuracy(trainer, tokenizer):
    return evaluate(trainer.model.float().eval(), tokenizer, problems=512)


def paid(completions, answer, **_):
    return Arithmetic().reward(None, completions, answer=answer)


@pytest.mark.slow
def test_rspo_trains_a_mixture_of_experts_in_trl(tmp_path):
    model, tokenizer, _ = warm_start(WarmStart(preset="tiny-moe"))
    own = {"algorithm": "rspo", "replay": "R2", "reward_funcs": paid}
    trainer = trainer_of(RefimplGRPOTrainer, tmp_path, LONG, model=model, **own)
    before = accuracy(trainer, tokenizer)
    trainer.model.train()
    trainer.train()
    after = accuracy(trainer, tokenizer)
    assert after > before + 0.2, (before, after)
    assert max(row["ratio/max_deviation"] for row in steps_of(trainer)) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "sapo"])
def test_the_arithmetic_world_is_learned_in_trl(name, tmp_path):
    _, tokenizer, _ = warm_start()
    trainer = trainer_of(
        RefimplGRPOTrainer, tmp_path, LONG, reward_funcs=paid, algorithm=name
    )
    before = accuracy(trainer, tokenizer)
    trainer.model.train()
    trainer.train()
    after = accuracy(trainer, tokenizer)
    assert before < 0.5 and after >= 0.9, (before, after)
