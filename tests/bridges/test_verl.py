"""The bridge to verl: its global counts, configurations, a worker.

What to install is said in `test_trl.py`. That verl's own losses answer the cases in
the same way is on the page, CONFORMANCE.md.
"""

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("verl", reason="TRL, verl, Liger: tests/bridges/requirements.txt")

import adapters_verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass

from refimpl import UserError
from refimpl.advantages import group_centred
from refimpl.algorithms import ALGORITHMS, GRPO, get
from refimpl.gate import from_gate
from refimpl.interop import verl as bridge
from refimpl.interop.configs import missing, yaml_of
from refimpl.interop.conformance import cases
from refimpl.interop.verl import REGISTERED, register

ROOT = Path(__file__).parents[2]
NAMES = [name.removeprefix("refimpl_") for name in REGISTERED]


def inputs():
    """With a hole, which a tool wrote, and an empty row."""
    typical = cases.typical()
    typical["mask"][1], typical["mask"][0, 3] = 0.0, 0.0
    return typical


def asked(name, given, settings, **more):
    """(loss, gradient) of a loss in verl's registry, by the adapter."""
    logp = given["logp"].clone().requires_grad_()
    loss = adapters_verl.asked(name, given | {"logp": logp}, settings, **more)
    return loss, torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_and_ranks_sum_to_the_whole(name):
    """Two ranks of two micro-batches each, with verl's global counts; gradients of
    ranks are averaged, as FSDP does."""
    method, given = get(name), inputs()
    settings = cases.settings_of(method)
    counts = {"batch_num_tokens": given["mask"].sum(), "global_batch_size": 4}
    counts["dp_size"] = 2
    loss, gradients = 0.0, []
    for row in range(4):
        part = {k: v[row : row + 1] for k, v in given.items()}
        share = asked(f"refimpl_{name}", part, settings, counts=counts)
        loss, gradients = loss + share[0] / 2, [*gradients, share[1] / 2]
    right, gradient, _ = cases.answer(method, given, settings)
    assert_close(loss, right, rtol=0, atol=1e-8)  # verl divides by |o| + 1e-8
    assert_close(torch.cat(gradients), gradient, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_of_verl_runs_its_loss(name, tmp_path):
    (tmp_path / f"{name}.yaml").write_text(yaml_of(name))
    with initialize_config_dir(str(tmp_path), version_base=None):
        whole = compose(name)
    section, algorithm = whole.actor_rollout_ref.actor, whole.algorithm
    OmegaConf.resolve(whole.data)
    updates = whole.data.train_batch_size / section.ppo_mini_batch_size
    assert updates * section.ppo_epochs == 4
    others = {"reinforce": "rloo", "flash_reinforce": "batch_centred"}  # the last: ours
    usual = others.get(name, "grpo")
    estimator = "gae" if get(name).critic else usual
    assert algorithm.adv_estimator == estimator
    centred = get(name).advantages is group_centred
    assert algorithm.norm_adv_by_std_in_grpo is not centred
    section.ppo_micro_batch_size_per_gpu = section.rollout_n = 1
    config = omega_conf_to_dataclass(section)
    given, mask = inputs(), inputs()["mask"]
    advantages = given["advantages"][:, None].expand_as(mask)
    tensors = given["old_logp"], given["logp"], advantages, mask
    ask = get_policy_loss_fn(config.policy_loss.loss_mode)
    loss, metrics = ask(*tensors, config.loss_agg_mode, config)
    if name == "dr_grpo":  # verl's actor hands it on
        assert config.loss_scale_factor == whole.data.max_response_length
    settings = cases.settings_of(get(name)) | {"max_length": float(mask.shape[1])}
    assert_close(loss, adapters_verl.asked(f"refimpl_{name}", given, settings))
    gap = (given["old_logp"] - given["logp"])[mask.bool()].mean().item()
    assert metrics["actor/ppo_kl"] == pytest.approx(gap)


@pytest.mark.slow
def test_a_process_that_imports_verl_has_the_losses():
    """As a worker of Ray's: by this package's entry point, nothing else."""
    module = "verl.trainer.ppo.core_algos"
    code = f"from {module} import POLICY_LOSS_REGISTRY as r; print(*r)"
    words = [sys.executable, "-W", "ignore", "-c", code]
    path = os.pathsep.join(p for p in [str(ROOT), *sys.path] if p)
    environment = os.environ | {"PYTHONPATH": path}
    printed = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert set(REGISTERED) <= set(printed.stdout.split()), printed.stderr


@pytest.fixture
def registry(monkeypatch):
    """What is registered in a test is forgotten after it."""
    name = "verl.trainer.ppo.core_algos.POLICY_LOSS_REGISTRY"
    monkeypatch.setattr(name, dict(POLICY_LOSS_REGISTRY))


def test_what_verl_cannot_have_takes_no_other_with_it(registry, monkeypatch):
    plain = replace(GRPO, name="plain", normaliser=lambda mask: mask / len(mask))
    monkeypatch.setitem(ALGORITHMS, "plain", plain)
    with pytest.warns(UserWarning, match="not in verl's registry") as warned:
        importlib.reload(bridge)
    (one,) = (str(w.message) for w in warned)
    assert "rspo needs the routing" in one and "plain is averaged by <lambda>" in one
    others = {f"refimpl_{n}" for n, a in ALGORITHMS.items() if not missing(a)}
    assert set(bridge.REGISTERED) == others
    with pytest.raises(UserError, match="rspo needs the routing"):
        register("rspo")


def test_hyperparameters_and_gates_of_ones_own(registry):
    given, settings = inputs(), cases.settings_of(GRPO)
    tau = {"tau_pos": 8.8, "tau_neg": 8.8}
    assert register("sapo", "narrow", **tau) == "narrow"
    right = asked("sapo", given, settings, **tau)
    assert_close(asked("narrow", given, settings), right, rtol=0, atol=1e-8)
    register(from_gate(lambda r, advantages: torch.ones_like(r), "open"))
    mask, ratio = given["mask"], (given["logp"] - given["old_logp"]).exp()
    share = mask / mask.sum(-1, keepdim=True).clamp(min=1) / 3  # of four one is empty
    right = -ratio * given["advantages"][:, None] * share
    gradient = asked("refimpl_open", given, settings)[1]
    assert_close(gradient, right, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("changed", "given", "message"),
    [
        ({"normaliser": "token_mean"}, {}, "loss_agg_mode=seq-mean-token-mean"),
        ({}, {"clip_ratio_high": 0.28}, r"clip_ratio_high=0\.28"),
        ({}, {"tau_neg": 2.0}, r"register\('grpo', name"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(changed, given, message):
    with pytest.raises(UserError, match=message):
        asked("refimpl_grpo", inputs(), cases.settings_of(GRPO) | changed, **given)


def test_nonsense_and_another_verl_are_refused_in_a_sentence(monkeypatch):
    with pytest.raises(UserError, match="did you mean 'sapo'"):
        register("sappo")
    with pytest.raises(UserError, match="tau_pos must be"):
        register("sapo", tau_pos=-1.0)
    monkeypatch.setattr(bridge.verl, "__version__", "0.10.0")
    why = r"tested with verl 0\.9, this is 0\.10\.0"
    with pytest.warns(UserWarning, match=why), pytest.raises(UserError, match=why):
        bridge.register("grpo")
