"""What the cells of chapter 14 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import DATA
from course.exercises import check
from course.kit import exercise_runs as of_exercises
from course.kit import plots
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.scaling_out import figures as pictures
from course.scaling_out import ranks
from course.scaling_out.exercises import gradient_of
from experiments import evidence
from experiments.claims import DELAYS, LATE, Contrast, behind, of_cell
from experiments.statistics import estimate
from refimpl.interop import configs
from refimpl.pretrained.memory import BESIDES, memory
