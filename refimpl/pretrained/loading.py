"""Load any causal language model of transformers, by folder or by name."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

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
ADAPTER = "adapter_config.json"


@guarded
def load(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal LM and its tokenizer, by folder or by name on the Hugging Face hub.

    A name in `pretrained.PACKAGED` (`smollm2`) is a model that `python -m refimpl
    fetch` has put into the cache, unless there is a folder of that name. A folder with
    a LoRA (written by `peft`'s `save_pretrained`) gives the base model with that
    adapter, ready for further training. Raises `UserError` if there is no such model,
    if its files lack weights, or if model and tokenizer do not fit together.
    """
    name, path = str(path), resolve(path)
    if os.path.isfile(os.path.join(path, ADAPTER)):
        return _load_adapter(Path(path))
    try:
        with no_progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                path, output_loading_info=True, **DATA
            )
        # A missing weight would be random. One too many, as a value head, does no harm.
        if missing := sorted(report["missing_keys"]):
            raise ValueError(
                f"{len(missing)} weights are missing, such as {missing[0]}, and "
                f"{len(report['unexpected_keys'])} have names that the model lacks"
            )
        if os.path.isdir(path) and not (Path(path) / "tokenizer_config.json").exists():
            raise FileNotFoundError("the folder has no tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(path, **DATA)
    except Exception as error:  # transformers raises many kinds for a damaged file
        again = f"; remove it, then `python -m refimpl fetch {name}` makes it again"
        mend = again if name in PACKAGED else nearest(name, PACKAGED)
        raise UserError(
            f"no causal language model with a tokenizer at {str(path)!r}: expected a "
            "folder written by save_pretrained, or a name on the Hugging Face hub "
            f"(which needs a network){mend}. {one_line(error)}"
        ) from error
    check_pair(model, tokenizer)
    return model, tokenizer


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
            warnings.filterwarnings("error", message=".*missing adapter keys")
            model = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    except Exception as error:
        raise UserError(
            f"the LoRA in {str(folder)!r} could not be put onto its base model, which "
            f"base_model_name_or_path in {ADAPTER} names: {one_line(error)}"
        ) from error
    check_pair(model, tokenizer)
    return model.eval(), tokenizer
