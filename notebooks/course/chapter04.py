"""What the cells of chapter 04 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.dr_grpo import figures as pictures
from course.exercises import check
from course.kit import claims, plots, stale
from course.kit.by_hand import answers, compare, show
from course.kit.plots import normalisers as grid
from course.kit.plots import tokens as token_picture
from course.kit.runs import of_runs
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
