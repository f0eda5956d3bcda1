"""What the cells of chapter 14 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import DATA, plots, ranks
from course.exercises import check
from course.exercises import runs as of_exercises
from course.exercises.chapter14 import gradient_of
from course.misreadings import MISREADINGS
from course.plots import scaling as pictures
from course.tables import as_table
from refimpl.interop import configs
from refimpl.lab import evidence
from refimpl.lab.claims import DELAYS, LATE, Contrast, behind, of_cell
from refimpl.lab.statistics import estimate
from refimpl.real.memory import BESIDES, memory
