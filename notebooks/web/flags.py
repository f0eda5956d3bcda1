"""Which flag gives this loss: every method in ten engines, as a table and as a page.

Every cell was read in a source of November 2026. TRL's and verl's come from
`course.elsewhere` and from the bridges of `refimpl.interop`, whose losses were run
against these engines (tests/bridges); the others stand in `flags_read`. Where nobody
has looked for a method in an engine, the cell is `NOT_READ`.
"""

import re
from html import escape

from course import elsewhere
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.interop import configs
from web.flags_read import ENGINES, NOT_READ, READ, Cell, given
from web.page import table

# ---------------------------------------------------------------------------
# TRL and verl: from the course's table and the bridges
# ---------------------------------------------------------------------------
_COMPARED = "; compared in `tests/bridges/CONFORMANCE.md`"
_READ = {
    **{
        ("TRL", f"dppo_{kind}"): "trl#5117, trl#6402; TRL 1.16.0"
        for kind in ("tv", "kl")
    },
    "TRL": "`trl/trainer/grpo_config.py`, TRL 1.16.0",
    "verl": "`verl/trainer/ppo/core_algos.py`, verl 0.9.1",
    ("TRL", "reinforce"): "`trl/trainer/rloo_trainer.py`, TRL 1.16.0",
    ("TRL", "gmpo"): "`trl/experimental/gmpo/gmpo_trainer.py`, TRL 1.16.0",
}
_BOUNDS = "The bounds are those of the log-ratio, as in the paper."
_DUAL = "The dual clip (c = 3) is on unless `clip_ratio_c` is 1e9."
_GONE = (
    "`trl.experimental.dppo` came in March 2026 (trl#5117), went in July (trl#6402)."
)
_ANCHOR = (
    "The ratio is against verl's old log-probs, the paper's against the sampler's. "
    "Left out, `clip_ratio_c` is 3."
)
_OURS = "verl has no such loss; this package's is registered where it is installed."
_ONLY_OURS = (
    "This package's loss, registered where it is installed. Whether verl has "
    "one of its own, nobody has read yet."
)
_DIFFERS = {
    ("TRL", "reinforce"): "PPO's clip stays around it, on the product of the ratios.",
    ("TRL", "ppo"): "The clip lives on in `GRPOTrainer`; there is no critic.",
    ("TRL", "grpo"): "Advantages are divided by std + 1e-4.",
    ("TRL", "dapo"): "The token mean is the generation's; the paper's is each group's.",
    ("TRL", "gspo_token"): "`GRPOConfig` has no such level.",
    ("TRL", "cispo"): "No lower bound. Left out, the cap falls back to 0.2.",
    ("TRL", "gmpo"): _BOUNDS,
    ("TRL", "rspo"): "This package's bridge has it, `RefimplGRPOTrainer`.",
    ("verl", "reinforce"): "PPO's clip stays around it, on the token's ratio.",
    ("verl", "ppo"): "The dual clip cannot be off; at 1e9 it never acts.",
    ("verl", "grpo"): "The default mean, `token-mean`, is over all tokens.",
    (
        "verl",
        "dr_grpo",
    ): f"Set `loss_scale_factor`, or the mask's width divides. {_DUAL}",
    ("verl", "gspo"): "It is the -token form, which has GSPO's gradient where all "
    "tokens of a response share their advantage.",
    ("verl", "dapo"): f"{_DUAL} The token mean is the batch's.",
    ("verl", "cispo"): "Both bounds are counted from 1.",
    ("TRL", "dppo_tv"): _GONE,
    ("TRL", "dppo_kl"): _GONE,
    ("TRL", "vespo"): "The weight of vLLM's log-probs is a part of W.",
    ("TRL", "minirl"): "TRL warns that LUSPO wants the level `sequence`.",
    ("verl", "dppo_tv"): _ANCHOR,
    ("verl", "dppo_kl"): _ANCHOR,
    ("verl", "luspo"): "It is the -token form of GSPO, summed over each answer.",
    ("verl", "minirl"): "The weight π_old/μ is `rollout_correction`, in the paper ≤ 5.",
    ("verl", "dro"): "`dro_beta` has no default and must be > 0.",
    **{("verl", name): _OURS for name in ("ipo", "glm5", "vespo", "kimi")},
    (
        "verl",
        "gmpo",
    ): f"{_BOUNDS} `loss_agg_mode` is not used: the mean is each "
    "micro-batch's (verl#7913).",
}
_NAME = re.compile(
    r"[\w.]+=[\w.+-]+|\b[a-z]\w*(?:\.\w+)+|\w+Trainer|[a-z]+(?:_[a-z]+)+"
)


def _source(engine: str, method: str, kind: str) -> str:
    """What was read; REINFORCE and what is absent could not be compared."""
    read = _READ.get((engine, method), _READ[engine])
    return read + _COMPARED * (kind == "settings" and method != "reinforce")


def bridged(engine: str, method: Algorithm) -> Cell:
    """TRL's or verl's cell: `course.elsewhere` and, for verl, what its bridge adds."""
    name = method.name
    text = getattr(elsewhere.ELSEWHERE.get(name), engine.lower(), "")
    if not text:
        return unread(engine, method)
    differs = _DIFFERS.get((engine, name), "none noted")
    if text.startswith(("none", "not implemented", "removed")):
        why = configs.missing(method) if engine == "verl" else None
        why = why or f"{text[0].upper()}{text[1:]}. {differs}"
        return Cell("absent", "absent", why, _source(engine, name, "absent"))
    if engine == "verl":
        text = completed(text, method)
    settings = _NAME.sub(r"`\g<0>`", text)
    return given(settings, _source(engine, name, "settings"), differs)


def unread(engine: str, method: Algorithm) -> Cell:
    """Of a method that `course.elsewhere` lacks: verl takes this package's loss."""
    if engine != "verl":
        return NOT_READ
    if why := configs.missing(method):
        return Cell("absent", "absent", why, _READ[engine])
    text = completed(f"policy_loss.loss_mode={configs.PREFIX}{method.name}", method)
    return given(_NAME.sub(r"`\g<0>`", text), _READ[engine], _ONLY_OURS)


def completed(text: str, method: Algorithm) -> str:
    """verl's settings with the advantages and the average that its bridge names."""
    yours = method.advantages.__name__
    estimator = configs.ESTIMATORS.get(method.advantages, yours).split()[0]
    averaged = method.normaliser.verl
    for flag, value in (("adv_estimator", estimator), ("loss_agg_mode", averaged)):
        text += "" if f"{flag}=" in text else f", {flag}={value}"
    return text


def cell(method: str, engine: str) -> Cell:
    if engine in READ:
        return READ[engine].get(method, NOT_READ)
    return bridged(engine, ALGORITHMS[method])


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
