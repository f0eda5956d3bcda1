"""A policy and its tokenizer, read from a folder."""

import pytest
import torch
from transformers.utils import logging

from refimpl import UserError
from refimpl.real.loading import load
from refimpl.starts import no_progress_bar
from refimpl.tasks import make_tokenizer
from tests.test_bad_input import DAMAGE
from tests.worlds import PROMPTS, TOKENIZER, gpt2, llama, random_model


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


def test_a_tokenizer_must_fit_the_model(tmp_path):
    """That there must be one: tests/test_bad_input.py."""
    random_model().save_pretrained(tmp_path)
    larger = make_tokenizer()
    larger.add_tokens(["<extra>"])
    larger.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="resize_token_embeddings"):
        load(tmp_path)


@pytest.mark.parametrize("on", [True, False])
def test_the_progress_bar_comes_back_if_it_was_there(on):
    before = logging.is_progress_bar_enabled()
    switch = {True: logging.enable_progress_bar, False: logging.disable_progress_bar}
    try:
        switch[on]()
        with no_progress_bar():
            assert not logging.is_progress_bar_enabled()
        with pytest.raises(KeyError), no_progress_bar():
            raise KeyError
        assert logging.is_progress_bar_enabled() is on
    finally:
        switch[before]()


@pytest.mark.parametrize(
    "name", "model.safetensors config.json tokenizer.json tokenizer_config.json".split()
)
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
