"""What the cells of chapter 02b take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import plots
from course.kit.by_hand import answers, compare
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.kl_and_small_print import figures as pictures
from course.misreadings import MISREADINGS
