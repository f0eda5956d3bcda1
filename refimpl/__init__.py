"""Policy-optimisation losses as their papers state them, on models you can train.

The path of the data is one line, and the modules stand along it:

    problem → prompt → rollout → reward → advantage → loss → update → history → plot
    tasks              rollout   rewards  advantages  algorithms  optimise   plots
                       └──────── experience ───────┘  └─── trainer ────┘

Floors, lowest first; no import runs upward:

1. `importance`, `advantages`, `aggregation`, `kl`: the pieces of every loss; `dice`:
   where random numbers come from.
2. `algorithms`: one file each, in chapter order.
3. `tasks`, `models`, `moe`, `rollout`, `rewards`, `warm_start`: world and policy;
   `starts/`: the warm-started policies that every machine begins with.
4. `trainer`: `train`, on `experience` (collect) and `optimise` (update), with `run`,
   `config`, `history` and `checkpoint` beside it.
5. `curves`, `plots`, `explorer`, `misreadings`, `exercises`: what the notebooks show.
6. `__main__`: the command line.
"""

import os

import torch

__version__ = "0.1.0"

# One thread is as fast as two for models this small. Two wait for each other by
# spinning, and come to a crawl when another program wants a core. To use more, set
# OMP_NUM_THREADS.
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)
