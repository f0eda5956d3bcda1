"""What the cells of chapter 17 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import distil, plots
from course.exercises import check
from course.misreadings import MISREADINGS
from course.plots import distil as pictures
from course.tables import as_table
from refimpl.lab.statistics import estimate
from refimpl.tasks import Arithmetic
