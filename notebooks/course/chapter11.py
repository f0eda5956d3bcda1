"""What the cells of chapter 11 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import claims, elsewhere, plots, stale
from course.by_hand import answers, compare, show
from course.exercises import check
from course.exercises.chapter11 import broken
from course.misreadings import MISREADINGS
from course.plots import surrogate as pictures
from course.plots import tokens
from course.runs import of_runs
from course.tables import as_table
from refimpl.lab import grid
from refimpl.lab.arms import one_sided
from refimpl.lab.effects import Mean
from refimpl.lab.statistics import estimate
