"""Two processes, one mini-batch: who divides by what, and who knows the whole group.

    torchrun --standalone --nproc_per_node 2 ranks.py

Chapter 14 starts it. The first rank prints what both found, as JSON.
"""

import json

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from refimpl import normalisers
from refimpl.advantages import Scored, group_relative
from refimpl.algorithms import ALGORITHMS

LENGTHS = ((40, 36, 44, 40), (4, 2, 6, 4))
"""of the answers on each rank"""
REWARDS = ((1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0))
"""of one group of eight, four on each rank"""


def gradient(lengths, seeds, share: float = 1.0) -> Tensor:
    """dL/dθ of DAPO's loss at log π = θ · slope, θ = 0.1, with Â = 1, −1, 1, −1.

    `share`: the rank's tokens ÷ those by which its loss is to be divided.
    """
    width = max(map(max, LENGTHS))
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).double()
    slope = torch.stack([_slope(seed, width) for seed in seeds])
    advantages = torch.tensor([1.0, -1.0] * (len(lengths) // 2)).double()
    theta = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    weight = normalisers.token_mean(mask) * share
    loss = (
        ALGORITHMS["dapo"]
        .policy_loss(theta * slope, 0 * slope, advantages, mask, weight)
        .loss
    )
    return torch.autograd.grad(loss, theta)[0]


def _slope(seed: int, width: int) -> Float[Tensor, " T"]:
    """What an answer's tokens do with θ: of long answers the opposite of short ones."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(width, generator=generator, dtype=torch.float64)
    return drawn * (1.0 if seed < 4 else -1.0) * (1.0 if seed % 2 == 0 else -1.0)


def in_one_process() -> float:
    """The gradient of all eight answers as one mini-batch."""
    return gradient(sum(LENGTHS, ()), range(8)).item()


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokens = torch.tensor(sum(LENGTHS[rank]), dtype=torch.float64)
    every = tokens.clone()
    dist.all_reduce(every)
    answers = {}
    for name, divisor in (("own", tokens), ("whole", every / ranks)):
        g = gradient(LENGTHS[rank], range(4 * rank, 4 * rank + 4), tokens / divisor)
        dist.all_reduce(g)
        answers[name] = (g / ranks).item()  # as DDP does: the mean over ranks
    rewards = torch.tensor(REWARDS[rank], dtype=torch.float64)
    parts = [torch.zeros(4, dtype=torch.float64) for _ in range(ranks)]
    dist.all_gather(parts, group_relative(Scored(rewards, torch.zeros(4).long())))
    answers["groups, own"] = torch.cat(parts).tolist()
    dist.all_gather(parts, rewards)
    whole = group_relative(Scored(torch.cat(parts), torch.zeros(8).long()))
    answers["groups, whole"] = whole.tolist()
    if rank == 0:
        print(json.dumps(answers))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
