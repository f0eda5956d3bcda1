"""What the cells of chapter 09 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import claims, plots, stale
from course.by_hand import answers, compare, show
from course.exercises import check
from course.exercises.chapter09 import anchored_at
from course.misreadings import MISREADINGS
from course.plots import moe as pictures
from course.plots import tokens
from course.runs import of_runs
from course.tables import as_table
from refimpl.lab import grid
from refimpl.lab.claims import NOISY, ROUTED, of_cell
from refimpl.lab.effects import Contrast
from refimpl.lab.statistics import estimate
