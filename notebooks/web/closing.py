"""How to run the notebooks, and the page after the last chapter."""

import html
import re
from collections.abc import Sequence

import refimpl
from course.kit import methods
from web.page import ROOT, Page, template
from web.start import FIRST

READ_NEXT = {
    "2402.03300": "GRPO in the place where it was made, with the data around it.",
    "2503.14476": "Four changes, each measured by itself, in a large system.",
    "2503.20783": "Looks at lengths and base models before it believes in an update.",
    "2508.08221": "Asks of each common trick by itself when it helps.",
    "2510.13786": "Asks which choices still count when the compute grows.",
}
"""Papers by arXiv id, and why."""
TABLE = r'<figure>(?:(?!</figure>).)*alt="Clips stop on one side of 1.*?</figure>'
"""Chapter 11's picture of all gates."""

COMMAND = r"```bash\n(.*?jupyterlab.*?)\n```"


def run(group: str) -> Page:
    """The README's way to a notebook that runs."""
    command = re.search(COMMAND, FIRST.read_text(encoding="utf-8"), re.S)[1]
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==[\d.]+", pinned, re.M)[0]
    body = f"""<h1 id="top">Install and run</h1>
<p>To read, nothing has to be installed. To train, to change the code, or to have an
exercise checked, run the notebooks: a laptop without a GPU is enough.</p>
<h2 id="install">Install</h2>
<p>In a copy of the repository, with Python 3.11 or newer:</p>
<pre tabindex="0">{html.escape(command)}</pre>
<p>The last line opens chapter 00 in JupyterLab. On Windows write <code>python</code>
for <code>python3</code> and <code>.venv\\Scripts\\python</code> for
<code>.venv/bin/python</code>. On Linux a plain install of torch brings CUDA libraries
of several GB; to avoid them, install the CPU build of <code>{torch}</code> first. What
else may go wrong is on the page <a href="troubleshooting.html">troubleshooting</a>.</p>
<h2 id="run">Run without a notebook</h2>
<pre tabindex="0">.venv/bin/python -m refimpl train --algorithm grpo --seed 0</pre>
<p>More of it: <a href="command_line.html">train from the command line</a>.</p>
<h2 id="codespaces">Run without a computer of your own</h2>
<p>On GitHub, <em>Code › Codespaces</em> installs everything and opens an editor in the
browser. Where this site knows its repository, each chapter also has a link to Colab and
a copy to download, whose first cell fetches the course.</p>
"""
    return Page(
        "run.html",
        "Install and run",
        body,
        group,
        summary="How to install the notebooks and run them, here or in Codespaces.",
    )


def after(group: str, chapters: Sequence[Page]) -> Page:
    """What a reader can do now, and where it goes on."""
    body = "".join(one.body for one in chapters if one.file.startswith("11_"))
    picture = re.search(TABLE, body, re.S)
    papers = [
        (paper, *methods.KNOWN.papers[paper], why) for paper, why in READ_NEXT.items()
    ]
    return Page(
        "after.html",
        "After the last chapter",
        template("after.html.j2").render(
            picture=picture[0] if picture else "",
            papers=papers,
            cited=cited(),
            version=refimpl.__version__,
        ),
        group,
        source=FIRST,
        summary="What you can do now, what to read next, a project, how to cite, and "
        "where to report an error.",
    )


def cited() -> dict[str, str]:
    """CITATION.cff's lines of one value."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    lines = re.findall(r'^\W*(\w+): "?(.+?)"?$', text, re.M)
    return dict(lines)
