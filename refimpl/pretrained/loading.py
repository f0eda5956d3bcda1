"""Load any causal language model of transformers, by folder or by name."""

import contextlib
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

DATA: Any = {"trust_remote_code": False}  # never run a repository's code, nor ask to


@guarded
def load(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal LM and its tokenizer, by folder or by name on the Hugging Face hub.

    A name in `pretrained.PACKAGED` (`smollm2`) is a model that `python -m refimpl
    fetch` has put into the cache, unless there is a folder of that name. A folder with
    a LoRA (written by `peft`'s `save_pretrained`) gives the base model with that
    adapter, ready for further training. Raises `UserError` if there is no such model,
    or if model and tokenizer do not fit together.
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
                raise FileNotFoundError("the folder has no tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(path, **DATA)
    except Exception as error:  # transformers raises many kinds for a damaged file
        again = f"; remove it, then `python -m refimpl fetch {name}` makes it again"
        mend = again if name in PACKAGED else nearest(name, PACKAGED)
        raise _no_model(path, f"{mend}. {one_line(error)}") from error
    check_pair(model, tokenizer)
    return model, tokenizer


ADAPTER = "adapter_config.json"


def check_place(name: str) -> None:
    """Raise `UserError` for names that are not on the hub, without a request to it."""
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, "config.json")):
            raise _no_model(name, "; that folder has no config.json")
    elif os.path.isabs(name) or name.count("/") > 1 or name.startswith("."):
        raise _no_model(name, "; there is no such folder")
    elif "/" not in name and (close := nearest(name, PACKAGED)):
        other = "If you do mean a similar name on the hub, give it as owner/name."
        raise _no_model(name, f"{close} {other}")


@contextlib.contextmanager
def asked_of_the_hub(asked: bool) -> Iterator[None]:
    """Inside the block, use earlier downloads alone unless `asked` is true."""
    before = huggingface_hub.constants.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = before or not asked
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = before


def reachable() -> bool:
    """True if the hub can be reached: offline, a request to it takes a minute."""
    address = urlsplit(huggingface_hub.constants.ENDPOINT)
    try:
        place = address.hostname, address.port or 443
        socket.create_connection(place, timeout=5).close()
    except OSError:
        return bool(getproxies())
    return True


def _no_model(path: str | Path, why: str) -> UserError:
    return UserError(
        f"no causal language model with a tokenizer at {str(path)!r}: expected a "
        "folder written by save_pretrained, or a name on the Hugging Face hub "
        f"(which needs a network){why}"
    )


def _load_adapter(folder: Path) -> tuple[Model, PreTrainedTokenizerBase]:
    """Load the base model that the adapter names, with the adapter on it."""
    peft = needed("peft")
    try:
        settings = json.loads((folder / ADAPTER).read_text("utf-8"))
        model, tokenizer = load(settings["base_model_name_or_path"])
        if (folder / "tokenizer_config.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(folder, **DATA)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns about transformers
            model = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    except Exception as error:
        raise UserError(
            f"the LoRA in {str(folder)!r} could not be put onto its base model, which "
            f"base_model_name_or_path in {ADAPTER} names: {one_line(error)}"
        ) from error
    check_pair(model, tokenizer)
    return model.eval(), tokenizer
