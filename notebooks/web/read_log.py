"""The page that shows what `read-log` answers, made by the command's own functions."""

import html
import tempfile
from pathlib import Path

from refimpl.interop import logs, six_curves, symptoms
from web.markdown import markdown
from web.page import ROOT, Page, enlarged, size_of, sized

EXAMPLE = ROOT / "tests" / "evidence" / "logs" / "hack.csv"
"""A run whose reward pays for the length of an answer, right or wrong."""
LINK = '<p>See <a href="read_log.html">an example, with its answer</a>.</p>'
PICTURE = "assets/read_log.png"
TEXT = """\
# Read your own log

```bash
python -m refimpl read-log trainer_state.json --figure six.png
```

The command compares the log of a run with the table
[From symptom to cause](11_one_surrogate.html#from-symptom-to-cause), and names the rows
that fit, the likely cause, and what to measure next. Nothing leaves your machine. The
guide says [which logs it reads](troubleshooting.html#read-your-own-log).

## An example

Suppose the reward pays for the length of an answer, right or wrong. Of the log of such
a run the command says:

```text
ANSWER
```

With `--figure` it also draws the six curves that decide. The dotted line is where the
first row begins.

FIGURE

## How a log is read

A row of the table fits where a number of the log is beyond a limit. The strength goes
from 0, at the limit, to 1. Rows on held-out problems come first. Then comes what began
first, because a cause precedes its consequences. A row whose columns are not in your
log is not judged, and the answer says so. The limits come from small models: with a
large one, trust the numbers more than the order.
"""


def page(group: str) -> Page:
    log = logs.read(EXAMPLE)._replace(path=EXAMPLE.name)
    found = symptoms.findings(log)
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder, "six.png")
        six_curves.draw(log, found, drawn)
        picture = drawn.read_bytes()
    told = html.escape("; ".join(finding.words for finding in found))
    image = (
        f'<img src="{PICTURE}" alt="Six panels of curves by step: {told}." '
        f"{sized(900, *size_of(picture))}>"
    )
    text = TEXT.replace("ANSWER", symptoms.report(log))
    return Page(
        "read_log.html",
        "Read your own log",
        markdown(text.replace("FIGURE", enlarged(image))),
        group,
        files={PICTURE: picture},
        summary="What the command says of a run's log from TRL or verl.",
    )
