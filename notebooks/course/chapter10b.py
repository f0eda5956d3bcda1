"""What the cells of appendix 10b take beside `import refimpl as rl`."""

# ruff: noqa: F401

from course import claims, plots
from course.plots import sapo as pictures
from course.plots import stored
from course.runs import of_runs
from course.tables import as_table
from refimpl.lab import grid
from refimpl.lab.arms import ARMS
from refimpl.lab.claims import LOSING
