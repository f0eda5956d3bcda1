"""Write recorded.safetensors: losses and gradients of the code as it is today.

    python -m tests.losses.make_recorded                how far the code is from it
    python -m tests.losses.make_recorded --overwrite    write it anew

Of every method in `CHOSEN`, with each choice of hyperparameters: every normaliser,
without and with a router shift (before and after the clip) and truncated importance
weights, in float64. The inputs were drawn once; they stay as they are in the file.
A new method is recorded as soon as it has a line in `CHOSEN`.
"""

import json
import os
import sys
from itertools import product
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from refimpl import moe, normalisers
from refimpl.algorithms import ALGORITHMS
from refimpl.importance import truncated_weight

FILE = Path(__file__).parent / "recorded.safetensors"
INPUTS = (
    "advantages gamma group logp mask old_logp rollout_logp token_advantages".split()
)
CHOSEN = {
    "reinforce": [{"correct": True}],
    "ppo": [{"dual_clip": 1.5}],
    "grpo": [{"epsilon": 0.3}, {"epsilon_low": 0.1, "epsilon_high": 0.4}],
    "dr_grpo": [{"epsilon": 0.1}],
    "gspo": [{"epsilon_low": 0.05, "epsilon_high": 0.06}],
    "gspo_token": [{"epsilon_low": 0.05, "epsilon_high": 0.06}],
    "dapo": [{"epsilon_high": 0.5}],
    "cispo": [{"max_ratio": 1.2}, {"mask_epsilon_low": 0.2, "mask_epsilon_high": 0.2}],
    "gmpo": [{"epsilon_low": 0.1, "epsilon_high": 0.2}],
    "rspo": [{"epsilon": 0.1}],
    "sapo": [{"tau_pos": 5.0, "tau_neg": 9.0}],
}


def stored() -> tuple[dict[str, torch.Tensor], list[list]]:
    """The tensors of the file, and of each case what `answer` takes, with metrics."""
    with safe_open(FILE, "pt") as opened:
        return load_file(FILE), json.loads(opened.metadata()["cases"])


def cases() -> list[tuple]:
    """name, hyperparameters, normaliser, placement of γ, truncated, Â per token."""
    choices = [(name, {}) for name in CHOSEN]
    choices += [(name, hyper) for name, more in CHOSEN.items() for hyper in more]
    averages = "seq_mean_token_mean token_mean group_token_mean constant".split()
    found = []
    for (name, hyper), average in product(choices, averages):
        for placement, truncated in product((None, *moe.PLACEMENTS), (False, True)):
            found.append((name, hyper, average, placement, truncated, False))
            if (average, placement, truncated) == ("token_mean", None, False):
                found.append((*found[-1][:-1], True))
    return found


def answer(data, name, hyper, average, placement, truncated, per_token):
    """(loss, gradient, metrics) of a case."""
    algorithm, mask, old_logp = ALGORITHMS[name], data["mask"], data["old_logp"]
    known = {"group": data["group"], "max_length": 10}
    weight = normalisers.apply(normalisers.NORMALISERS[average], mask, **known)
    if truncated:
        weight = weight * truncated_weight(old_logp, data["rollout_logp"], mask, 2.0)
    if placement:
        rest = (mask, data["gamma"], placement, algorithm.one_ratio)
        old_logp, weight = moe.shifted(old_logp, weight, *rest)
    advantages = data["token_advantages" if per_token else "advantages"]
    logp = data["logp"].clone().requires_grad_()
    batch = (logp, old_logp, advantages, mask, weight)
    loss, metrics = algorithm.policy_loss(*batch, **hyper)
    return loss.detach(), torch.autograd.grad(loss, logp)[0], metrics


def main(overwrite: bool) -> None:
    data, before = stored()
    every = cases()
    losses, gradients, metrics = zip(*(answer(data, *case) for case in every))
    new = {"losses": torch.stack(losses), "gradients": torch.stack(gradients)}
    if every == [tuple(case[:-1]) for case in before]:
        gaps = {n: f"{(x - data[n]).abs().max():.1e}" for n, x in new.items()}
        print(f"{len(every)} cases, as in the file; largest differences: {gaps}")
    else:
        print(f"{len(every)} cases; the file has {len(before)}, or others")
    if not overwrite:
        sys.exit("nothing was written; --overwrite writes the file anew")
    written = {name: data[name] for name in INPUTS} | new
    named = json.dumps([[*case, m] for case, m in zip(every, metrics)])
    save_file(written, temporary := FILE.with_suffix(".new"), {"cases": named})
    os.replace(temporary, FILE)
    print(f"wrote {FILE.name}")


if __name__ == "__main__":
    main("--overwrite" in sys.argv[1:])
