"""What the cells of chapter 15 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import late, plots
from course.by_hand import answers, compare
from course.exercises import check
from course.misreadings import MISREADINGS
from course.plots import late as pictures
from course.tables import as_table
from refimpl.corrections import factor
