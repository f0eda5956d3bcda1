"""Which flag gives this loss: every method in 14 engines, as a table and as a page.

Every cell was read in a source of November 2026 and stands in `notebooks/methods.toml`.
TRL's and verl's losses were run against the bridges of `refimpl.interop`
(tests/bridges), which add what they know. Where nobody has looked for a method in an
engine, the cell is `NOT_READ`.
"""

import re
from html import escape
from typing import Literal, NamedTuple

from course.kit import methods
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.interop import configs
from web.page import table


class Cell(NamedTuple):
    kind: Literal["settings", "partly", "absent", "not found", "not read"]
    settings: str
    """What to set; of the last three kinds, the kind."""
    differs: str
    """Where the engine's formula is not the paper's, or why there is none."""
    source: str


ENGINES = {name: engine.read for name, engine in methods.KNOWN.engines.items()}
NOT_READ = Cell(
    "not read",
    "not read",
    "Nobody has looked for this method in this engine yet.",
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
    "This package's loss, registered where it is installed. Whether verl has "
    "one of its own, nobody has read yet."
)
_NAME = re.compile(
    r"[\w.]+=[\w.+-]+|\b[a-z]\w*(?:\.\w+)+|\w+Trainer|[a-z]+(?:_[a-z]+)+"
)


def bridged(engine: str, method: Algorithm, entry: methods.Entry | None) -> Cell:
    """REINFORCE and what is absent could not be compared."""
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
    """Of a method of which nobody has read: verl takes this package's loss."""
    if engine != "verl":
        return NOT_READ
    source = methods.KNOWN.engines[engine].source
    if why := configs.missing(method):
        return Cell("absent", "absent", why, source)
    text = completed(f"policy_loss.loss_mode={configs.PREFIX}{method.name}", method)
    return Cell("settings", _NAME.sub(r"`\g<0>`", text), _ONLY_OURS, source)


def completed(text: str, method: Algorithm) -> str:
    """verl's settings with the advantages and the average that its bridge names."""
    yours = method.advantages.__name__
    first, *beside = configs.ESTIMATORS.get(method.advantages, yours).splitlines()
    given = [f"adv_estimator: {first}", *beside]
    given = [line.partition("#")[0].strip().split(": ", 1) for line in given]
    for flag, value in (*given, ("loss_agg_mode", method.normaliser.verl)):
        text += "" if f"{flag}=" in text else f", {flag}={value}"
    return text


def rows() -> list[tuple[str, str, str, str, str]]:
    """A table's lines: method, engine, settings, what differs, source."""
    return [(m, e, *cell(m, e)[1:]) for m in ALGORITHMS for e in ENGINES]


# ---------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------
INTRO = """\
<p>Find the method's row below and follow the mark under your engine: it leads to the
line that names the settings. <em>Partly</em> means that the engine has a part of the
loss, often the advantage alone; <em>no</em> leads to the reason; <em>not found</em>
means that we could not read a list of that engine's losses; <em>not read</em>, that
nobody has looked there for a method that is new here.</p>
<p><strong>What “read” means.</strong> In November 2026 we read each engine's released
package, or its repository at the commit named. TRL's and verl's losses were also run
beside this course's, values and gradients compared; the other engines were read and
not run. Options move: check the version first. The constants are the papers', as far as
a paper gives them. CISPO's does not: its cap of 5 here is ScaleRL's. Settings that turn
off an engine's own additions (a KL term, a dual clip) are named where the source shows
them on by default or in its example.</p>
"""
_LINKS = re.compile(
    r"(?P<file>[\w.-]+/[\w.-]+)/(?P<path>[\w./-]+)@(?P<at>[0-9a-f]{10})"
    r"|(?P<repo>[\w.-]+/[\w.-]+)#(?P<number>\d+)|(?P<url>https://[^\s,]+)"
)


def _link(found: re.Match) -> str:
    """A file at a commit, an issue or a page, in text that is escaped already.

    The last part of an address is shown, the whole one is the link's title.
    """
    whole, shown = found[0], found[0].rsplit("/", 1)[-1]
    to = f"https://github.com/{found['repo']}/issues/{found['number']}"
    if found["file"]:
        to = f"https://github.com/{found['file']}/blob/{found['at']}/{found['path']}"
    return f'<a href="{found["url"] or to}" title="{whole}">{shown}</a>'


def _marked(text: str) -> str:
    """Escaped, with `…` as code and sources as links."""
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
    return _LINKS.sub(_link, text)


def _settings(text: str) -> str:
    """One to a line, as they would be typed."""
    return _marked(text).replace("</code>, ", "</code><br>").replace("), ", ")<br>")


def _id(method: str, engine: str) -> str:
    return f"{method}-{engine.lower()}"


def _mark(method: str, engine: str) -> str:
    """A matrix's entry: ✓, no or not found, as a link to the line that says more."""
    kind = cell(method, engine).kind
    shown = {"settings": "✓", "absent": "no"}.get(kind, kind)
    label = f"{ALGORITHMS[method].title} in {engine}: {kind}"
    return f'<a href="#{_id(method, engine)}" aria-label="{escape(label)}">{shown}</a>'


def matrix() -> str:
    """Methods by engines, each entry a link."""
    rows = [
        [
            f'<a href="#{name}">{escape(method.title)}</a>',
            *(_mark(name, engine) for engine in ENGINES),
        ]
        for name, method in ALGORITHMS.items()
    ]
    return table(["Method", *ENGINES], rows, "Which engine has which method")


def section(name: str) -> str:
    """A method's heading and its table, one line per engine."""
    title = escape(ALGORITHMS[name].title)
    rows = []
    for engine in ENGINES:
        _, settings, differs, source = cell(name, engine)
        texts = _settings(settings), _marked(differs), _marked(source)
        rows.append([escape(engine), *texts])
    heads = ["Engine", "Settings", "What differs", "Source"]
    caption = f"{title}: the settings, engine by engine"
    anchors = [_id(name, engine) for engine in ENGINES]
    return f'<h2 id="{name}">{title}</h2>\n{table(heads, rows, caption, anchors)}'


def body() -> str:
    """The page “Which flag gives this loss?”, as an HTML fragment."""
    read = [[escape(engine), escape(what)] for engine, what in ENGINES.items()]
    return (
        '<h1 id="flags">Which flag gives this loss?</h1>\n'
        + INTRO
        + matrix()
        + "".join(section(name) for name in ALGORITHMS)
        + '<h2 id="engines">What was read</h2>\n'
        + table(["Engine", "Read"], read, "The engines' versions")
    )
