"""What the cells of chapter 17 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.distillation import distil
from course.distillation import figures as pictures
from course.exercises import check
from course.kit import plots
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from experiments.statistics import estimate
from refimpl.tasks import Arithmetic
