"""What the cells of chapter 06 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from course import claims, plots
from course.by_hand import answers, compare, show
from course.exercises import check
from course.misreadings import MISREADINGS
from course.plots import dapo as pictures
from course.plots import normalisers as ragged
from course.runs import of_runs
from course.tables import as_table
from refimpl.collect import refill
from refimpl.rewards import overlong_punishment
