"""The README's two commands, as somebody runs them who has Python and nothing else.

    python tests/tools/front_door.py open     JupyterLab answers, and serves chapter 00
    python tests/tools/front_door.py test     all tests, all chapters; no trace is left

Each runs word for word, in a clone of the last commit and with an empty home folder; of
the machine's variables none is left. Only Python's own modules are used here.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = os.name == "nt"
INSTALLED = 1800
"""Seconds for what has to be downloaded before JupyterLab can answer."""


def command(last_word: str) -> str:
    """The README's command that ends in `last_word`: a block of its own."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if block.endswith(last_word)]
    if WINDOWS:  # as the README says
        found = found.replace("python3 ", "python ").replace(
            ".venv/bin", ".venv/Scripts"
        )
    return found


OPEN, TEST = "notebooks/00_start_here.ipynb", "-m pytest"
CHAPTERS = "notebooks"
"""What the README says to put behind the second command's last line."""


def nothing_else(home: str) -> dict[str, str]:
    """An environment with a Python, a shell, git, and an empty home folder."""
    folders = [os.path.dirname(os.path.realpath(sys.executable)), "/usr/bin", "/bin"]
    given = {"HOME": home, "PATH": os.pathsep.join(folders)}
    if WINDOWS:  # where no program starts without these
        kept = ("SYSTEMROOT", "COMSPEC", "PATHEXT", "PATH")
        given |= {name: os.environ[name] for name in kept} | {"USERPROFILE": home}
    return given


class Lab(NamedTuple):
    """A JupyterLab that answers."""

    address: str  # of the page that it would open, without the token
    root: str  # of the server
    token: str
    folder: Path  # in which it was started

    def get(self, path: str) -> bytes:
        """What stands at this path of the server; an `OSError` if it refuses."""
        header = {"Authorization": f"token {self.token}"}
        asked = urllib.request.Request(f"{self.root}/{path}", headers=header)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.read()


PAGE = re.compile(r'(http://[^/"]+)(/lab/tree/[^"?]+)\?token=(\w+)')


def opened(home: Path) -> str:
    """The page that Jupyter writes for the browser, which is sent on from there."""
    pages = home.rglob("jpserver-file-to-run-*-open.html")
    return "".join(page.read_text(errors="replace") for page in pages)


@contextlib.contextmanager
def lab(line: str, folder: Path, variables: dict, patience: float) -> Iterator[Lab]:
    """What `line`, run in `folder` by a shell, serves; its words are kept at home."""
    home = Path(variables["HOME"])
    log = home / "lab.log"
    if not WINDOWS and os.geteuid() == 0:  # a container: Jupyter refuses, README says
        (home / ".jupyter").mkdir(exist_ok=True)
        allowed = json.dumps({"ServerApp": {"allow_root": True}})
        (home / ".jupyter/jupyter_server_config.json").write_text(allowed)
    with log.open("w") as words:
        server = subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + patience
        while not (found := PAGE.search(opened(home))):
            said = log.read_text(errors="replace")[-3000:]
            if server.poll() is not None:
                raise RuntimeError(f"it ended with {server.returncode}:\n{said}")
            if time.monotonic() > end:
                raise RuntimeError(f"no page within {patience:.0f} s:\n{said}")
            time.sleep(0.3)
        yield Lab(found[1] + found[2], found[1], found[3], folder)
    finally:
        with contextlib.suppress(ProcessLookupError):
            if WINDOWS:
                server.terminate()
            else:
                os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


def chapter_00(server: Lab) -> str:
    """What the page that is opened first holds, in a few words; or an error."""
    name = server.address.rpartition("/lab/tree/")[2]
    assert server.get(f"lab/tree/{name}").startswith(b"<!doctype html>")
    found = json.loads(server.get(f"api/contents/{name}"))
    title = found["content"]["cells"][0]["source"].splitlines()[0]
    assert found["path"] == name and title == "# 00 · Start here", title
    assert server.get("lab/extensions/refimpl-explorers/lab.js")  # moves its sliders
    (kernel,) = json.loads(server.get("api/kernelspecs"))["kernelspecs"]
    return f"{name}: {title!r}, {len(found['content']['cells'])} cells, kernel {kernel}"


def main(which: str) -> int:
    folder = Path(tempfile.mkdtemp(prefix="front-door-"))
    clone, home = folder / "clone", folder / "home"
    home.mkdir()
    try:
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        line = command({"open": OPEN, "test": TEST}[which])
        variables = nothing_else(str(home))
        given = shlex.join(f"{name}={value}" for name, value in variables.items())
        print(f"+ env -i {given} bash -c {shlex.quote(line)}", flush=True)
        if which == "open":
            start = time.monotonic()
            with lab(line, clone, variables, INSTALLED) as server:
                print(f"{chapter_00(server)}; after {time.monotonic() - start:.0f} s")
            return 0
        codes = [timed("the tests", line, cwd=clone, env=variables)]
        line = f"{line.splitlines()[-1]} {CHAPTERS}"
        codes += [timed("the chapters", line, cwd=clone, env=variables)]
        changed = subprocess.check_output(["git", "status", "--short"], cwd=clone)
        print(changed.decode(), end="")  # a figure that was drawn over, say
        return max(*codes, bool(changed))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def timed(what: str, line: str, **where) -> int:
    """The exit code of `line`; how long it took, and of how many cores, is printed."""
    start, used = time.monotonic(), cpu()
    code = subprocess.run(["bash", "-c", line], **where).returncode
    print(f"{what}: {time.monotonic() - start:.0f} s", end="")
    print("" if WINDOWS else f", {(cpu() - used) / 60:.1f} core-minutes", flush=True)
    return code


def cpu() -> float:
    """Seconds of CPU of all processes that were started here and have ended."""
    if WINDOWS:
        return 0.0
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
