"""Which flag gives this loss? Every method in 14 engines, as a table and a page.

Every cell was read from a source in November 2026 and is kept in
`notebooks/methods.toml`. TRL's and verl's losses were run against the bridges of
`refimpl.interop` (tests/bridges), which add settings. Where nobody has looked for a
method in an engine, the cell is `NOT_READ`.
"""

import re
from typing import Literal, NamedTuple

from markupsafe import Markup, escape

from course.kit import methods
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.interop import configs
from web.page import Page, made


class Cell(NamedTuple):
    kind: Literal["settings", "partly", "absent", "not found", "not read"]
    settings: str
    """The settings; for the last three kinds, the kind."""
    differs: str
    """Where the engine's formula is not the paper's, or why there is none."""
    source: str


ENGINES = methods.KNOWN.engines
NOT_READ = Cell(
    "not read",
    "not read",
    "We have not looked for this method in this engine yet.",
    "none",
)


def cell(method: str, engine: str) -> Cell:
    entry = methods.of(method).engines.get(engine)
    if engine in ("TRL", "verl"):
        return bridged(engine, ALGORITHMS[method], entry)
    if entry is None:
        return NOT_READ
    kind = methods.KINDS[entry.key]
    if entry.settable:
        return Cell(kind, entry.text, entry.differs, entry.source)
    return Cell(kind, kind, entry.text, entry.source)


# ---------------------------------------------------------------------------
# TRL and verl: with what the bridges add
# ---------------------------------------------------------------------------
_COMPARED = "; compared in `tests/bridges/CONFORMANCE.md`"
_ONLY_OURS = (
    "This package's loss, registered where it is installed. We have not checked yet "
    "whether verl has its own."
)
_NAME = re.compile(
    r"[\w.]+=[\w.+-]+|\b[a-z]\w*(?:\.\w+)+|\w+Trainer|[a-z]+(?:_[a-z]+)+"
)


def bridged(engine: str, method: Algorithm, entry: methods.Entry | None) -> Cell:
    """Return a cell of TRL or verl. REINFORCE and absent methods were not compared."""
    if entry is None:
        return unread(engine, method)
    kind, text, source = methods.KINDS[entry.key], entry.text, entry.source
    if not entry.settable:
        why = configs.missing(method) if engine == "verl" else None
        why = why or f"{text[0].upper()}{text[1:]}. {entry.differs}"
        return Cell(kind, kind, why, source)
    if engine == "verl":
        text = completed(text, method)
    settings = _NAME.sub(r"`\g<0>`", text)
    source += _COMPARED * (method.name != "reinforce")
    return Cell(kind, settings, entry.differs, source)


def unread(engine: str, method: Algorithm) -> Cell:
    """Return the cell of a method nobody has looked up: verl can use our loss."""
    if engine != "verl":
        return NOT_READ
    source = methods.KNOWN.engines[engine].source
    if why := configs.missing(method):
        return Cell("absent", "absent", why, source)
    text = completed(f"policy_loss.loss_mode={configs.PREFIX}{method.name}", method)
    return Cell("settings", _NAME.sub(r"`\g<0>`", text), _ONLY_OURS, source)


def completed(text: str, method: Algorithm) -> str:
    """Add the advantages and the average that verl's bridge names to its settings."""
    yours = method.advantages.__name__
    first, *beside = configs.ESTIMATORS.get(method.advantages, yours).splitlines()
    settings = [f"adv_estimator: {first}", *beside]
    settings = [line.partition("#")[0].strip().split(": ", 1) for line in settings]
    for flag, value in (*settings, ("loss_agg_mode", method.normaliser.verl)):
        text += "" if f"{flag}=" in text else f", {flag}={value}"
    return text


def page(group: str) -> Page:
    return made(
        "flags",
        "Which flag gives this loss?",
        group,
        "How to set fourteen engines to compute each method's loss.",
        methods=ALGORITHMS.values(),
        engines=ENGINES,
        cell=cell,
        marked=marked,
        typed=typed,
    )


_LINKS = re.compile(
    r"(?P<file>[\w.-]+/[\w.-]+)/(?P<path>[\w./-]+)@(?P<at>[0-9a-f]{10})"
    r"|(?P<repo>[\w.-]+/[\w.-]+)#(?P<number>\d+)|(?P<url>https://[^\s,]+)"
)


def _link(match: re.Match) -> str:
    """Link to a file at a commit, an issue or a page, in text that is escaped already.

    The link shows the last part of the address; its title is the whole one.
    """
    whole, shown = match[0], match[0].rsplit("/", 1)[-1]
    to = f"https://github.com/{match['repo']}/issues/{match['number']}"
    if match["file"]:
        to = f"https://github.com/{match['file']}/blob/{match['at']}/{match['path']}"
    return f'<a href="{match["url"] or to}" title="{whole}">{shown}</a>'


def marked(text: str) -> Markup:
    """Escape a text, with `…` as code and sources as links."""
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text)))
    return Markup(_LINKS.sub(_link, text))


def typed(text: str) -> Markup:
    """Format settings, one to a line."""
    one_by_one = str(marked(text)).replace("</code>, ", "</code><br>")
    return Markup(one_by_one.replace("), ", ")<br>"))
