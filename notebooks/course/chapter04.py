"""What the cells of chapter 04 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import claims, plots, stale
from course.by_hand import answers, compare, show
from course.exercises import check
from course.misreadings import MISREADINGS
from course.plots import dr_grpo as pictures
from course.plots import normalisers as grid
from course.plots import tokens as token_picture
from course.runs import of_runs
from course.tables import as_table
