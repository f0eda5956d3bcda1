"""What the cells of appendix 10b take beside `import refimpl as rl`."""

# ruff: noqa: F401

from course.kit import claims, plots
from course.kit.plots import stored
from course.kit.runs import of_runs
from course.kit.tables import as_table
from course.sapo import figures as pictures
from refimpl.lab import grid
from refimpl.lab.arms import ARMS
from refimpl.lab.claims import LOSING
