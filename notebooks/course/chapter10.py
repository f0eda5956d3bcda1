"""What the cells of chapter 10 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import claims, plots, stale
from course.by_hand import answers, compare, show
from course.exercises import check
from course.exercises.chapter10 import BROKEN
from course.misreadings import MISREADINGS
from course.plots import sapo as pictures
from course.plots import stored, tokens
from course.plots.sapo_explorer import sapo_explorer
from course.runs import of_runs
from course.tables import as_table
from refimpl.lab import grid
from refimpl.lab.effects import Breaking
from refimpl.lab.statistics import estimate
