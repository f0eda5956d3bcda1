"""What the cells of chapter 09 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import claims, plots
from course.kit.by_hand import answers, compare, show
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.moe_and_rspo import figures as pictures
from course.moe_and_rspo.exercises import anchored_at
from experiments import grid
from experiments.claims import ROUTED, of_cell
from experiments.effects import Contrast
from experiments.statistics import estimate
