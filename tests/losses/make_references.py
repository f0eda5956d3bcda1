"""Write references.json: what TRL and verl make of the same random batches.

Inputs, losses and gradients (with respect to log π_θ) in float64: every policy loss,
and losses with a KL to a reference policy. The frameworks are asked through the
adapters in tests/bridges. Not part of the tests, which read the file. In a virtual
environment that has both frameworks (see tests/bridges/requirements.txt):

    python tests/losses/make_references.py
"""
# ruff: noqa: E402 — a stand-in for ray must come before the frameworks

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import torch

for name in ("ray", "ray.util", "ray.util.scheduling_strategies", "ray.experimental"):
    sys.modules.setdefault(name, MagicMock())  # verl loads it, its losses do not use it
sys.path.insert(0, str(Path(__file__).parents[1] / "bridges"))

import adapters_trl
import adapters_verl
import trl
import verl

from refimpl.algorithms import ALGORITHMS

FRAMEWORKS = {"trl": adapters_trl, "verl": adapters_verl}
LENGTHS = [7, 1, 4, 9, 3, 6]
ADVANTAGES = [1.3, -0.8, 0.0, -1.7, 0.6, 0.9]
LONGEST = 12  # Dr. GRPO's constant
BETA = 0.3
CASES = [  # our hyperparameters; `max_length` is the normaliser's
    ("ppo", {}),
    ("ppo", {"dual_clip": 3.0}),
    ("grpo", {}),
    ("dr_grpo", {"max_length": LONGEST}),
    ("dapo", {}),
    ("gspo", {}),
    ("gspo_token", {}),
    ("cispo", {"max_ratio": 1.28}),
    ("gmpo", {}),
    ("sapo", {}),
    ("sapo", {"tau_pos": 8.8, "tau_neg": 17.6}),
]
ONLY_VERL = [CASES[1], CASES[6]]
KL_CASES = [("k3", "trl"), ("unbiased_k3", "trl")]
KL_CASES += [(name, "verl") for name in ("k1", "k2", "k3", "k3+")]


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


def answer(framework: str, name: str, about: dict, data: dict, given: dict, kl=None):
    """What a framework says of a batch; `about` says which of ours it is."""
    method, logp = ALGORITHMS[name], data["logp"].clone().requires_grad_()
    hyper = {**method.defaults, **given}
    settings = {
        "normaliser": method.normaliser.__name__,
        "max_length": hyper.pop("max_length", LONGEST),
        "hyperparameters": hyper,
        **({"kl": kl, "beta": BETA} if kl else {}),
    }
    inputs = {"ref_logp": data["old_logp"], **data, "logp": logp}
    loss = getattr(FRAMEWORKS[framework], name)(inputs, settings)
    (gradient,) = torch.autograd.grad(loss, logp)
    print(f"{framework:5} {name:11} {about}  {loss.item():.9f}")
    found = {"loss": loss.item(), "gradient": gradient.tolist()}
    return {"framework": framework, "algorithm": name, **about, **found}


def policy_losses(batches: list[dict]) -> list[dict]:
    return [
        answer(framework, name, {"hyperparameters": given, "batch": i}, data, given)
        for name, given in CASES
        for i, data in enumerate(batches)
        for framework in FRAMEWORKS
        if framework == "verl" or (name, given) not in ONLY_VERL
    ]


def with_kl(batches: list[dict]) -> dict:
    """GRPO on the first batch and DAPO on the second, each with every KL; π_ref."""
    references = [reference_policy(data, seed=i) for i, data in enumerate(batches)]
    results = []
    for estimator, framework in KL_CASES:
        for i, name in enumerate(("grpo", "dapo")):
            data = {**batches[i], "ref_logp": references[i]}
            about = {"estimator": estimator, "beta": BETA, "batch": i}
            results.append(answer(framework, name, about, data, {}, estimator))
    return {"ref_logp": [x.tolist() for x in references], "results": results}


def main() -> None:
    batches = [batch(0.4, seed=0), batch(0.002, seed=1)]
    written = {
        "versions": {"trl": trl.__version__, "verl": verl.__version__},
        "torch": torch.__version__.split("+")[0],
        "batches": [{k: v.tolist() for k, v in data.items()} for data in batches],
        "results": policy_losses(batches),
        "kl": with_kl(batches),
    }
    path = Path(__file__).parent / "references.json"
    path.write_text(json.dumps(written) + "\n")
    print(f"wrote {path.name}, {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
