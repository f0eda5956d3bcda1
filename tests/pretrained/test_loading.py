"""A policy and its tokenizer, read from a folder."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from refimpl import UserError
from refimpl.pretrained.loading import load
from tests.test_bad_input import DAMAGE
from tests.worlds import (
    PROMPTS,
    TOKENIZER,
    gpt2,
    llama,
    random_model,
    renamed,
    same_weights,
)


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
