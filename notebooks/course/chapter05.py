"""What the cells of chapter 05 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import claims, plots, stale
from course.by_hand import answers, compare, show
from course.exercises import check
from course.exercises.chapter05 import BROKEN
from course.misreadings import MISREADINGS
from course.plots import gspo as pictures
from course.plots import tokens
from course.runs import of_runs
from course.tables import as_table
