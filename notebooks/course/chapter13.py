"""What the cells of chapter 13 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import DATA
from course.exercises import check, typed
from course.kit import exercise_runs as of_exercises
from course.kit import plots
from course.kit.plots import stored
from course.kit.runs import watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.real_model import figures as pictures
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.lab import real
from refimpl.lab.statistics import estimate
from refimpl.lab.store import read
from refimpl.real import reading
from refimpl.real.chat import Chat
from refimpl.real.loading import load
from refimpl.real.memory import memory
from refimpl.sampling import Sampling, log_distribution
