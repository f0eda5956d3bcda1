"""What the cells of chapter 16 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import claims, plots
from course.kit.by_hand import answers, compare
from course.kit.runs import watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.probability import figures as pictures
from course.probability import fork
from experiments.claims import CLAIMS
