"""Any causal language model of transformers, by folder or by name."""

import json
import warnings
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from refimpl.checks import UserError, guarded, nearest, one_line
from refimpl.models import Model, check_pair
from refimpl.real.extras import needed
from refimpl.real.pretrained import PACKAGED, resolve
from refimpl.starts import no_progress_bar

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
    if (Path(path) / ADAPTER).exists():
        return _load_adapter(Path(path))
    try:
        with no_progress_bar():
            model = AutoModelForCausalLM.from_pretrained(path, **DATA)
        if Path(path).is_dir() and not (Path(path) / "tokenizer_config.json").exists():
            raise FileNotFoundError("there is no tokenizer beside the model")
        tokenizer = AutoTokenizer.from_pretrained(path, **DATA)
    except Exception as error:  # transformers raises many kinds for a damaged file
        mend = nearest(name, PACKAGED) or "."
        if name in PACKAGED:
            mend = f"; `python -m refimpl fetch {name}` makes it anew."
        raise UserError(
            f"no causal language model with a tokenizer at {str(path)!r}: expected a "
            "folder written by save_pretrained, or a name on the Hugging Face hub "
            f"(which needs a network){mend} {one_line(error)}"
        ) from error
    check_pair(model, tokenizer)
    return model, tokenizer


ADAPTER = "adapter_config.json"


def _load_adapter(folder: Path) -> tuple[Model, PreTrainedTokenizerBase]:
    """The base model that the adapter names, with the adapter on it."""
    peft = needed("peft")
    try:
        base = json.loads((folder / ADAPTER).read_text())["base_model_name_or_path"]
        model, tokenizer = load(base)
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
