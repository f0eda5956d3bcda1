"""What the cells of chapter 13 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import DATA, plots
from course.exercises import check
from course.exercises import runs as of_exercises
from course.misreadings import MISREADINGS
from course.plots import real as pictures
from course.plots import stored
from course.tables import as_table
from refimpl.batch import Rollout
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.lab import real
from refimpl.lab.statistics import estimate
from refimpl.lab.store import read
from refimpl.real import scoring
from refimpl.real.chat import Chat
from refimpl.real.loading import load
from refimpl.real.memory import memory
from refimpl.real.sharing import pack
from refimpl.sampling import Sampling, log_distribution
