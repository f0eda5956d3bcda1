"""Write references.json: what TRL and verl make of the same random batches.

Inputs, losses and gradients (with respect to log π_θ) in float64: every policy loss,
losses with a KL to a reference policy, and verl's KL estimators by themselves, which it
clamps. Not part of the tests, which read the file. In a virtual environment of its own:

    python -m venv .frameworks
    .frameworks/bin/pip install -r requirements.txt trl==1.16.0
    .frameworks/bin/pip install --no-deps verl==0.9.1 omegaconf hydra-core \
        tensordict pyvers cloudpickle codetiming orjson antlr4-python3-runtime==4.9.3
    .frameworks/bin/python tests/losses/make_references.py
"""
# ruff: noqa: E402 — a stand-in for ray must come before the frameworks

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import MethodType, SimpleNamespace
from unittest.mock import MagicMock

import torch

for name in ("ray", "ray.util", "ray.util.scheduling_strategies", "ray.experimental"):
    sys.modules.setdefault(name, MagicMock())  # verl loads it, its losses do not use it

import trl
import verl
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.config import ActorConfig

LENGTHS = [7, 1, 4, 9, 3, 6]
ADVANTAGES = [1.3, -0.8, 0.0, -1.7, 0.6, 0.9]
LONGEST = 12  # Dr. GRPO's constant
BETA = 0.3


def verls(loss: str, average: str, low: float, high: float, **more) -> tuple:
    """verl's (loss, aggregation, settings)."""
    return loss, average, {"clip_ratio_low": low, "clip_ratio_high": high, **more}


SEQUENCE = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
BY_ROW, BY_TOKEN, SUM = (
    "seq-mean-token-mean",
    "token-mean",
    "seq-mean-token-sum-norm",
)
SHARP = {"tau_pos": 8.8, "tau_neg": 17.6}
# name, our hyperparameters, TRL's settings, verl's
CASES = [
    ("ppo", {}, {"loss_type": "dapo"}, verls("vanilla", BY_TOKEN, 0.2, 0.2)),
    (
        "ppo",
        {"dual_clip": 3.0},
        None,
        verls("vanilla", BY_TOKEN, 0.2, 0.2, clip_ratio_c=3.0),
    ),
    ("grpo", {}, {"loss_type": "grpo"}, verls("vanilla", BY_ROW, 0.2, 0.2)),
    (
        "dr_grpo",
        {"max_length": LONGEST},
        {"loss_type": "dr_grpo"},
        verls("vanilla", SUM, 0.2, 0.2, loss_scale_factor=LONGEST),
    ),
    (
        "dapo",
        {},
        {"loss_type": "dapo", "epsilon_high": 0.28},
        verls("vanilla", BY_TOKEN, 0.2, 0.28),
    ),
    (
        "gspo",
        {},
        {"loss_type": "grpo", "level": "sequence", **SEQUENCE},
        verls("gspo", BY_ROW, 3e-4, 4e-4),
    ),
    ("gspo_token", {}, None, verls("gspo", BY_ROW, 3e-4, 4e-4)),
    (
        "cispo",
        {"max_ratio": 1.28},
        {"loss_type": "cispo", "epsilon_high": 1.28},
        verls("cispo", BY_TOKEN, 1.0, 0.28),
    ),
    (
        "gmpo",
        {},
        {"loss_type": "gmpo", "epsilon_low": 0.4, "epsilon_high": 0.4},
        verls("geo_mean", BY_ROW, 0.4, 0.4),
    ),
    (
        "sapo",
        {},
        {"loss_type": "sapo"},
        ("sapo", BY_ROW, {"tau_pos": 1.0, "tau_neg": 1.05}),
    ),
    ("sapo", SHARP, {"loss_type": "sapo", **SHARP}, ("sapo", BY_ROW, SHARP)),
]

# Our estimator, framework, its setting: TRL's switch, verl's name
KL_CASES = [
    ("k3", "trl", False),
    ("unbiased_k3", "trl", True),
    ("k1", "verl", "k1"),
    ("k2", "verl", "k2"),
    ("k3", "verl", "k3"),
    ("k3+", "verl", "k3+"),
]
# log π_θ − log π_ref, nats; verl holds k3 at 10, which −2.62 and 11 reach
DISTANCES = [-25.0, -6.0, -2.6, -1.0, -0.3, -0.01, 0.0, 0.01, 0.3, 1.0, 3.0, 10.0, 15.0]


def batch(spread: float, seed: int) -> dict:
    """Log-ratios with the given spread; two rows shifted as a whole."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).double()
    noise = torch.randn(2, *mask.shape, generator=generator, dtype=torch.float64)
    old_logp = (-noise[0].abs() - 0.05) * mask
    shift = torch.tensor([0.0, 0, 0, 0, spread / 2, -spread / 2])[:, None]
    logp = old_logp + (spread * noise[1] + shift) * mask
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    return {"logp": logp, "old_logp": old_logp, "advantages": advantages, "mask": mask}


def reference_policy(data: dict, seed: int) -> torch.Tensor:
    """Log-probs of π_ref: half a nat from π_old."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(data["mask"].shape, generator=generator, dtype=torch.float64)
    return data["old_logp"] + 0.5 * noise * data["mask"]


def by_trl(data: dict, settings: dict, beta: float = 0.0) -> tuple[float, list]:
    """`_compute_loss` on a stand-in that has what it reads."""
    logp = data["logp"].clone().requires_grad_()
    trainer = GMPOTrainer if settings["loss_type"] == "gmpo" else GRPOTrainer
    me = SimpleNamespace(
        loss_type=settings["loss_type"],
        importance_sampling_level=settings.get("level", "token"),
        epsilon_low=settings.get("epsilon_low", 0.2),
        epsilon_high=settings.get("epsilon_high", 0.2),
        beta=beta,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        max_completion_length=LONGEST,
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=False),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x
        ),
        args=SimpleNamespace(
            delta=None,
            sapo_temperature_pos=settings.get("tau_pos", 1.0),
            sapo_temperature_neg=settings.get("tau_neg", 1.05),
            use_bias_correction_kl=settings.get("use_bias_correction_kl"),
            steps_per_generation=1,
            report_to=[],
        ),
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            logp,
            torch.zeros_like(logp),
            None,
        ),
    )
    ids = torch.zeros_like(data["mask"], dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :0],
        "prompt_mask": ids[:, :0],
        "completion_ids": ids,
        "completion_mask": data["mask"],
        "advantages": data["advantages"],
        "old_per_token_logps": data["old_logp"],
        "num_items_in_batch": data["mask"].sum(),
        "ref_per_token_logps": data.get("ref_logp"),
    }
    loss = MethodType(trainer._compute_loss, me)(None, inputs)
    return loss.item(), torch.autograd.grad(loss, logp)[0].tolist()


def by_verl(data: dict, loss_mode: str, aggregation: str, settings: dict, kl=None):
    """The policy loss, plus β times the KL `kl` as verl's `losses.ppo_loss` adds it."""
    logp = data["logp"].clone().requires_grad_()
    settings = {"clip_ratio_c": 1e9, **settings}
    factor = settings.pop("loss_scale_factor", None)
    taus = {k: settings.pop(k) for k in ("tau_pos", "tau_neg") if k in settings}
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=aggregation,
        **settings,
    )
    for name, value in taus.items():
        object.__setattr__(config, name, value)
        object.__setattr__(config.policy_loss, name, value)
    if factor is not None:
        config.global_batch_info["loss_scale_factor"] = factor
    loss, _ = get_policy_loss_fn(loss_mode)(
        data["old_logp"],
        logp,
        data["advantages"][:, None].expand_as(logp),
        data["mask"],
        aggregation,
        config,
    )
    if kl is not None:
        estimate = kl_penalty(logp, data["ref_logp"], kl)
        loss = loss + BETA * agg_loss(estimate, data["mask"], aggregation)
    return loss.item(), torch.autograd.grad(loss, logp)[0].tolist()


def policy_losses(batches: list[dict]) -> list[dict]:
    results = []
    for name, hyperparameters, trl_settings, verl_settings in CASES:
        for number, data in enumerate(batches):
            found = {}
            if trl_settings is not None:
                found["trl"] = by_trl(data, trl_settings)
            found["verl"] = by_verl(data, *verl_settings)
            about = {"hyperparameters": hyperparameters, "batch": number}
            for framework, answer in found.items():
                results.append(result(framework, name, about, answer))
    return results


def result(framework: str, name: str, about: dict, answer: tuple) -> dict:
    loss, gradient = answer
    print(f"{framework:5} {name:11} {about}  {loss:.9f}")
    answered = {"loss": loss, "gradient": gradient}
    return {"framework": framework, "algorithm": name, **about, **answered}


def with_kl(batches: list[dict]) -> dict:
    """GRPO on the first batch and DAPO on the second, each with every KL; π_ref."""
    references = [reference_policy(data, seed=i) for i, data in enumerate(batches)]
    settings = {name: both for name, given, *both in CASES if not given}
    results = []
    for estimator, framework, setting in KL_CASES:
        for number, name in enumerate(("grpo", "dapo")):
            data = {**batches[number], "ref_logp": references[number]}
            for_trl, for_verl = settings[name]
            if framework == "trl":
                for_trl = {**for_trl, "use_bias_correction_kl": setting}
                answer = by_trl(data, for_trl, BETA)
            else:
                answer = by_verl(data, *for_verl, kl=setting)
            about = {"estimator": estimator, "beta": BETA, "batch": number}
            results.append(result(framework, name, about, answer))
    return {"ref_logp": [x.tolist() for x in references], "results": results}


def verls_estimators() -> dict:
    """Value and gradient of each at `DISTANCES`."""
    found = {}
    for name in ("k1", "k2", "k3", "k3+"):
        logp = torch.tensor(DISTANCES, dtype=torch.float64, requires_grad=True)
        value = kl_penalty(logp, torch.zeros_like(logp), name)
        (slope,) = torch.autograd.grad(value.sum(), logp)
        found[name] = {"value": value.tolist(), "gradient": slope.tolist()}
    return {"distances": DISTANCES, "estimators": found}


def main() -> None:
    batches = [batch(0.4, seed=0), batch(0.002, seed=1)]
    written = {
        "versions": {"trl": trl.__version__, "verl": verl.__version__},
        "torch": torch.__version__.split("+")[0],
        "batches": [{k: v.tolist() for k, v in data.items()} for data in batches],
        "results": policy_losses(batches),
        "kl": {**with_kl(batches), "verl": verls_estimators()},
    }
    path = Path(__file__).parent / "references.json"
    path.write_text(json.dumps(written) + "\n")
    print(f"wrote {path.name}, {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
