"""Any causal language model of transformers, by folder or by name."""

import contextlib
import difflib
import json
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from refimpl.models import Model, check_pair
from refimpl.pretrained.extras import needed
from refimpl.pretrained.packaged import PACKAGED, resolve
from refimpl.sft import no_progress_bar
from refimpl.validation import UserError, guarded, nearest, one_line

DATA: Any = {"trust_remote_code": False}  # and nobody is asked whether it may run


@guarded
def load(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Any causal LM and its tokenizer, by folder or by name on the Hugging Face hub.

    A name in `pretrained.PACKAGED` (`smollm2`) is a model that `python -m refimpl
    fetch` has put into the cache, unless there is a folder of that name.
    A folder with a LoRA in it (`peft`'s `save_pretrained`) gives the base model with
    that adapter, to be trained on. Raises `UserError` if there is nothing there, or if
    the two do not fit together.
    """
    name, path = str(path), resolve(path)
    if os.path.isfile(os.path.join(path, ADAPTER)):
        return _load_adapter(Path(path))
    check_place(str(path))
    here = os.path.isdir(path)
    try:
        with no_progress_bar(), asked_of_the_hub(not here and reachable()):
            model = AutoModelForCausalLM.from_pretrained(path, **DATA)
            if here and not (Path(path) / "tokenizer_config.json").exists():
                raise FileNotFoundError("there is no tokenizer beside the model")
            tokenizer = AutoTokenizer.from_pretrained(path, **DATA)
    except Exception as error:  # transformers raises many kinds for a damaged file
        mend = nearest(name, PACKAGED) or "."
        if name in PACKAGED:
            mend = f"; `python -m refimpl fetch {name}` makes it anew."
        raise _no_model(path, f"{mend} {one_line(error)}") from error
    check_pair(model, tokenizer)
    return model, tokenizer


ADAPTER = "adapter_config.json"
ALIKE = 0.7
"""Names as similar as this are taken for one misspelt, before the hub is asked."""


def check_place(name: str) -> None:
    """Raise `UserError` where the hub need not be asked: that takes a minute offline.

    A folder without a model in it, a path that is no folder, a name that nothing on the
    hub can have, or one that is nearly that of a packaged model or of a folder here.
    """
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, "config.json")):
            raise _no_model(name, "; that folder has no config.json")
        return
    if os.path.lexists(name):
        raise _no_model(name, "; that is no folder")
    above = os.path.dirname(name)
    known = [*folders_of_models(above), *map(str.lower, PACKAGED)]
    close = difflib.get_close_matches(name.lower(), map(str.lower, known), 1, ALIKE)
    if close and not above:
        raise _no_model(
            name,
            f"{nearest(name, known)} A name on the hub that is only like it is found "
            "with its owner, as owner/name.",
        )
    try:
        validate_repo_id(name)
        possible = not os.path.isdir(above)
    except HFValidationError:
        possible = False
    if not possible:
        raise _no_model(name, nearest(name, known) or "; there is no such folder")


def folders_of_models(above: str) -> list[str]:
    """The names below a folder, with the prefix that stands before them."""
    if not os.path.isdir(above or "."):
        return []
    paths = [os.path.join(above, name) for name in os.listdir(above or ".")]
    records = ("config.json", ADAPTER)
    return [
        path
        for path in paths
        if any(os.path.isfile(os.path.join(path, record)) for record in records)
    ]


@contextlib.contextmanager
def asked_of_the_hub(asked: bool) -> Iterator[None]:
    """Unless it is, only what was downloaded before is found, and that at once."""
    before = huggingface_hub.constants.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = before or not asked
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = before


def reachable() -> bool:
    """True if the hub can be asked; through a proxy, that is left to be seen."""
    address = urlsplit(huggingface_hub.constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    if getproxies():
        return True
    try:
        socket.create_connection((address.hostname, port), timeout=5).close()
    except OSError:
        return False
    return True


def _no_model(path: str | Path, why: str) -> UserError:
    return UserError(
        f"no causal language model with a tokenizer at {str(path)!r}: expected a "
        "folder written by save_pretrained, or a name on the Hugging Face hub "
        f"(which needs a network){why}"
    )


def _load_adapter(folder: Path) -> tuple[Model, PreTrainedTokenizerBase]:
    """The base model that the adapter names, with the adapter on it."""
    peft = needed("peft")
    try:
        settings = json.loads((folder / ADAPTER).read_text("utf-8"))
        model, tokenizer = load(settings["base_model_name_or_path"])
        if (folder / "tokenizer_config.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(folder, **DATA)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peft about transformers
            model = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    except Exception as error:
        raise UserError(
            f"{str(folder)!r} holds a LoRA, which could not be put onto its base model "
            f"(base_model_name_or_path in {ADAPTER} names it): {one_line(error)}"
        ) from error
    check_pair(model, tokenizer)
    return model.eval(), tokenizer
