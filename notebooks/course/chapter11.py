"""What the cells of chapter 11 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import claims, plots, stale
from course.kit.by_hand import answers, compare
from course.kit.plots import tokens
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.one_surrogate import figures as pictures
from course.one_surrogate import symptoms
from course.one_surrogate.exercises import broken
from experiments import grid
from experiments.arms import one_sided
from experiments.effects import Mean
from experiments.statistics import estimate
