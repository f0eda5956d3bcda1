"""The page that reads a run's log in the browser, as `read-log` does in a shell.

The rules, and every word that is not a number of the log, come from `refimpl.interop`;
`assets/read_log.js` has the arithmetic. Tests compare what both say of the same logs.
"""

import json
from collections.abc import Sequence

from refimpl.interop import logs, symptoms
from web import instructor
from web.page import ASSETS, ROOT, Page

EXAMPLE = ROOT / "tests" / "evidence" / "logs" / "hack.csv"
"""A run whose reward pays for the length of an answer, right or wrong."""
LINK = (
    '<p><a href="read_log.html">A page of this site</a> does the same in the browser, '
    "without an installation. It sends the log nowhere.</p>"
)


def page(group: str, chapters: Sequence[Page]) -> Page:
    body = (ASSETS / "read_log.html").read_text(encoding="utf-8")
    return Page(
        "read_log.html",
        "Read your own log",
        body.replace("RULES", rules(chapters)),
        group,
        styles=("read_log.css",),
        summary="Drop a run's log from TRL or verl, and read which symptoms it shows.",
    )


def rules(chapters: Sequence[Page]) -> str:
    """What the script starts from, as JSON that may stand in HTML."""
    known = logs.DATA | {
        "read": {name: words for name, (_, _, words) in symptoms.READ.items()},
        "fewest": logs.FEWEST,
        "together": symptoms.TOGETHER,
        "expected": logs.EXPECTED,
        "unseen": symptoms.UNSEEN,
        "chapters": {instructor.number(one): one.file for one in chapters},
        "example": {"name": EXAMPLE.name, "text": EXAMPLE.read_text("utf-8")},
    }
    return json.dumps(known, ensure_ascii=False).replace("<", "\\u003c")
