"""The bridge to verl against verl's own losses, its configurations and a Ray worker.

What to install is said in `test_trl.py`.
"""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("ray", reason="ray is not installed")

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import ActorConfig

from refimpl import interop
from refimpl.algorithms import ALGORITHMS, from_gate, get
from refimpl.interop import verl as bridge
from refimpl.interop.verl import AGGREGATION, REGISTERED, register

CONFIGS = Path(interop.__file__).parent / "configs"


def batch(rows=6, width=9, seed=0):
    """Log-probs at r ≠ 1, two-sided advantages, a hole, a full row and an empty one."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 2
    moved = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    length = torch.randint(1, width, (rows,), generator=generator)
    length[0] = width
    mask = (torch.arange(width) < length[:, None]).double()
    mask[0, 3] = 0.0  # a tool wrote this token
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    return {
        "old_log_prob": old,
        "log_prob": (old + 0.4 * moved).clamp(max=0).requires_grad_(),
        "advantages": advantages.expand(rows, width) * mask,
        "response_mask": mask,
    }


def actor(**changed):
    own = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    return ActorConfig(**{**own, **changed})


def asked(name, inputs, config, mode, weights=None):
    """(loss, gradient, metrics) of a loss in verl's registry."""
    loss, metrics = get_policy_loss_fn(name)(
        loss_agg_mode=mode, config=config, rollout_is_weights=weights, **inputs
    )
    return loss, torch.autograd.grad(loss, inputs["log_prob"])[0], metrics


# verl's loss, and the settings with which it is the paper's.
SAME = {
    "grpo": ("vanilla", {"clip_ratio_c": 1e9}),
    "dr_grpo": ("vanilla", {"clip_ratio_c": 1e9}),
    "dapo": ("vanilla", {"clip_ratio_c": 1e9, "clip_ratio_high": 0.28}),
    "ppo": ("vanilla", {"clip_ratio_c": 1e9}),
    "gspo_token": ("gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    "gspo": ("gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    # verl's bounds are 1 − low and 1 + high, and it has no lower one at low = 1
    "cispo": ("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}),
    "sapo": ("sapo", {}),
}


def mode_of(name):
    return AGGREGATION[get(name).normaliser]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SAME)
def test_value_and_gradient_are_those_of_verls_own_loss(name, weighted):
    inputs = batch()
    weights = 0.5 + torch.rand(inputs["old_log_prob"].shape).double()
    weights = weights if weighted else None
    theirs, settings = SAME[name]
    mode = mode_of(name)
    right = asked(theirs, inputs, actor(**settings), mode, weights)
    ours = asked(f"refimpl_{name}", inputs, actor(), mode, weights)
    near = {"rtol": 0, "atol": 2e-9}  # verl divides by |o| + 1e-8
    assert_close(ours[0], right[0], **near)
    if weighted and name == "gspo":  # theirs is GSPO-token: a token's own gradient
        assert (ours[1] - right[1]).abs().max() > 1e-3
    else:
        assert_close(ours[1], right[1], **near)
    assert right[1].norm() > 1e-3
    assert ours[2]["actor/ppo_kl"] == pytest.approx(right[2]["actor/ppo_kl"], abs=1e-9)


def test_gmpo_is_verls_geometric_mean_where_that_is_the_papers():
    """One micro-batch and no hole, because verl averages over the micro-batch alone."""
    inputs = batch()
    settings = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    mode = mode_of("gmpo")
    right = asked("geo_mean", inputs, actor(**settings), mode)
    ours = asked("refimpl_gmpo", inputs, actor(), mode)
    assert_close(ours[:2], right[:2], rtol=0, atol=1e-8)
    assert right[1].norm() > 1e-3


@pytest.mark.parametrize("name", [n.removeprefix("refimpl_") for n in REGISTERED])
def test_micro_batches_and_ranks_sum_to_the_whole(name):
    """Two ranks of two micro-batches each, with verl's global counts; gradients of
    ranks are averaged, as FSDP does."""
    inputs, mode = batch(8), mode_of(name)
    scale = {"loss_scale_factor": 9}
    whole = actor()
    whole.global_batch_info.update(scale)
    loss, gradient, _ = asked(f"refimpl_{name}", inputs, whole, mode)
    split = actor()
    split.global_batch_info.update(
        dp_size=2,
        batch_num_tokens=inputs["response_mask"].sum(),
        global_batch_size=8,
        **scale,
    )
    total, parts = 0.0, []
    for rows in torch.arange(8).split(2):
        part = {k: v[rows].detach() for k, v in inputs.items()}
        part["log_prob"].requires_grad_()
        own, g, _ = asked(f"refimpl_{name}", part, split, mode)
        total, parts = total + own / 2, [*parts, g / 2]
    assert_close(total, loss, rtol=0, atol=1e-12)
    assert_close(torch.cat(parts), gradient, rtol=0, atol=1e-12)


UP, DOWN = torch.e**0.2, torch.e**-0.2
BY_HAND = {
    "reinforce": (2 * -0.8 - 1.5 * -0.9) / 2,
    "ppo": (2 * 1.2 - 1.5 * DOWN) / 2,
    "grpo": (2 * 1.2 - 1.5 * DOWN) / 2,
    "dr_grpo": (2 * 1.2 - 1.5 * DOWN) / 3,
    "gspo": (2 - 1.5) / 2,  # the ratios' geometric mean is 1
    "gspo_token": (2 - 1.5) / 2,
    "dapo": (2 * UP - 1.5 * DOWN) / 2,
    "cispo": (2 * UP * -0.8 - 1.5 * DOWN * -0.9) / 2,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_inputs_of_verls_own_test_give_the_papers_loss(name):
    """Those of `test_dro_matches_direct_formula` in verl 0.9.1: r = e^0.2, e^−0.2."""
    inputs = {
        "old_log_prob": torch.tensor([[-1.0, -0.7, -0.2]]).double(),
        "log_prob": torch.tensor([[-0.8, -0.9, -0.1]]).double().requires_grad_(),
        "advantages": torch.tensor([[2.0, -1.5, 9.0]]).double(),
        "response_mask": torch.tensor([[1.0, 1.0, 0.0]]).double(),
    }
    loss, _, _ = asked(f"refimpl_{name}", inputs, actor(), mode_of(name))
    assert loss.item() == pytest.approx(-BY_HAND[name], abs=1e-6)


# Configurations


@pytest.mark.parametrize("name", [n.removeprefix("refimpl_") for n in REGISTERED])
def test_a_configuration_of_verl_runs_its_loss(name):
    with initialize_config_dir(str(CONFIGS), version_base=None):
        whole = compose(name)
    section = whole.actor_rollout_ref.actor
    OmegaConf.resolve(whole.data)
    updates = whole.data.train_batch_size / section.ppo_mini_batch_size
    assert updates * section.ppo_epochs == 4
    own = {"ppo": "gae", "reinforce": "rloo"}.get(name, "grpo")
    assert whole.algorithm.adv_estimator == own
    assert own in get(name).verl or own != "rloo"
    std = whole.algorithm.norm_adv_by_std_in_grpo
    assert std is (name != "dr_grpo")
    section.ppo_micro_batch_size_per_gpu = 1
    section.rollout_n = 1
    config = omega_conf_to_dataclass(section)
    if name == "dr_grpo":
        assert config.loss_scale_factor == whole.data.max_response_length
    inputs = batch()
    loss, _, _ = asked(
        config.policy_loss.loss_mode, inputs, config, config.loss_agg_mode
    )
    right, _, _ = asked(f"refimpl_{name}", inputs, actor(), mode_of(name))
    assert_close(loss, right)


def test_every_configuration_belongs_to_a_loss():
    assert {f"refimpl_{file.stem}" for file in CONFIGS.glob("*.yaml")} == set(
        REGISTERED
    )


# Workers


@pytest.mark.slow
def test_a_ray_worker_has_the_losses_by_itself():
    """It imports verl, which finds this package's entry point; nothing else."""
    import ray

    path = os.pathsep.join(p for p in sys.path if p)
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    try:

        @ray.remote
        def names():
            from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

            return os.getpid(), sorted(POLICY_LOSS_REGISTRY)

        process, found = ray.get(names.remote(), timeout=200)
    finally:
        ray.shutdown()
    assert process != os.getpid()
    assert set(REGISTERED) <= set(found)


# Registering, and what is refused


def test_all_but_rspo_are_registered():
    assert set(REGISTERED) == {f"refimpl_{n}" for n in ALGORITHMS if n != "rspo"}
    with pytest.raises(ValueError, match=r"rspo needs the routing .* take gmpo"):
        register("rspo")


def test_hyperparameters_and_gates_of_ones_own(monkeypatch):
    monkeypatch.setattr(
        "verl.trainer.ppo.core_algos.POLICY_LOSS_REGISTRY", dict(POLICY_LOSS_REGISTRY)
    )
    inputs, mode = batch(), "seq-mean-token-mean"
    narrow = register("sapo", "narrow", tau_pos=8.8, tau_neg=8.8)
    assert narrow == "narrow"
    right = asked("sapo", inputs, actor(tau_pos=8.8, tau_neg=8.8), mode)
    assert_close(asked("narrow", inputs, actor(), mode)[:2], right[:2])
    register(from_gate(lambda r, advantages: torch.ones_like(r), "open"))
    _, gradient, _ = asked("refimpl_open", inputs, actor(), mode)
    mask, logp = inputs["response_mask"], inputs["log_prob"].detach()
    ratio = (logp - inputs["old_log_prob"]).exp()
    share = mask / mask.sum(-1, keepdim=True) / len(mask)
    assert_close(gradient, -ratio * inputs["advantages"] * share)


@pytest.mark.parametrize(
    ("settings", "mode", "message"),
    [
        ({}, "token-mean", "loss_agg_mode=seq-mean-token-mean"),
        ({"clip_ratio_high": 0.28}, "seq-mean-token-mean", r"clip_ratio_high=0\.28"),
        ({"tau_neg": 2.0}, "seq-mean-token-mean", r"register\('grpo', name"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings, mode, message):
    with pytest.raises(ValueError, match=message):
        asked("refimpl_grpo", batch(), actor(**settings), mode)


def test_unknown_names_and_values_are_refused():
    with pytest.raises(ValueError, match="did you mean 'sapo'"):
        register("sappo")
    with pytest.raises((ValueError, TypeError), match="tau_pos"):
        register("sapo", tau_pos=-1.0)


@pytest.mark.parametrize("version", ["0.8.3", "0.10.0", "1.0.0"])
def test_another_verl_is_refused_by_name(version, monkeypatch):
    monkeypatch.setattr(bridge.verl, "__version__", version)
    said = rf"tested with verl 0\.9, this is {version}"
    with pytest.warns(UserWarning, match=said), pytest.raises(ImportError, match=said):
        register("grpo")


def test_a_gate_that_is_not_finite_is_named(monkeypatch):
    register(from_gate(lambda r, advantages: r / (r - r), "broken"))
    with pytest.raises(ValueError, match="the gate is inf"):
        asked("refimpl_broken", batch(), actor(), "seq-mean-token-mean")
    del POLICY_LOSS_REGISTRY["refimpl_broken"]


def test_advantages_of_another_shape_are_refused():
    inputs = batch() | {"advantages": torch.ones(6, 8).double()}
    with pytest.raises((ValueError, TypeError)):
        asked("refimpl_grpo", inputs, actor(), "seq-mean-token-mean")
