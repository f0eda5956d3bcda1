"""What the cells of chapter 15 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check
from course.kit import plots
from course.kit.by_hand import answers, compare
from course.kit.tables import as_table
from course.late_sampler import figures as pictures
from course.late_sampler import late
from course.misreadings import MISREADINGS
from refimpl.corrections import factor
