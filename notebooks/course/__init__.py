"""What only the chapters use: figures, sliders, exercises, misreadings.

Every chapter has a folder with the name of its notebook. `kit` is what several chapters
use, and imports none of them by name; it also gathers the exercises and misreadings
that lie in the folders.

A notebook's working folder is this folder's parent, so `from course import …` works.
Importing it sets matplotlib's style and the number of threads, and samples by the
written-out decode step, for the chapters are what it is for; the library itself changes
nothing in the process that imports it.
"""

import os
from pathlib import Path

if os.environ.get("JPY_SESSION_NAME"):  # a notebook, whose reader sees [*] and waits
    print("Loading the course takes about ten seconds.", flush=True)

import torch

from refimpl.pretrained import fast

DATA = Path(__file__).resolve().parents[2] / "figures" / "data"
"""Stored runs: what the chapters draw and do not train again."""

from course.kit.plots import style  # noqa: E402  (kit reads DATA)

style.use()
fast.use()

# One thread is as fast as two for models this small. Two wait for each other by
# spinning, and come to a crawl when another program wants a core. To use more, set
# OMP_NUM_THREADS.
if not os.environ.get("OMP_NUM_THREADS"):
    torch.set_num_threads(1)
