"""A frozen teacher beside the reference: distillation as an advantage."""

import copy
from dataclasses import replace

import pytest
import torch

from refimpl import UserError, collect, models, updates
from refimpl.logprobs import log_probs
from tests.worlds import (
    TOKENIZER,
    prepared,
    random_model,
    same_weights,
    small_run,
    warm_model,
)

TAUGHT = {"advantage": "distillation", "hyperparameters": {"correct": True}}


def test_it_is_the_loop_that_chapter_17_writes_out():
    """Which takes a run apart to put log π_T − log π_old in place of its advantages."""
    one = small_run("reinforce", model=random_model(), teacher=warm_model(), **TAUGHT)
    run = prepared("reinforce", model=random_model(), hyperparameters={"correct": True})
    run.zero_advantage_rows_matter = True
    for step in range(run.config.rollouts):
        batch, _ = collect(run, step)
        with torch.no_grad():
            said, _ = log_probs(warm_model(), batch.rollout)
        apart = said - batch.old_logp
        updates(run, replace(batch, advantages=apart), step)
        mean = -(apart * batch.mask).sum() / batch.mask.sum()
        assert one["teacher_kl"][step] == pytest.approx(mean.item(), rel=1e-5)
    assert same_weights(one.model, run.model)
    assert one["teacher_kl"][-1] < one["teacher_kl"][0]


def test_a_group_of_one_and_a_teacher_whose_vocabulary_is_padded():
    """The same log-probs: no one samples what the padding stands for."""
    alone = {"group_size": 1, "rollouts": 2, "model": random_model(), **TAUGHT}
    plain = small_run("reinforce", teacher=warm_model(), **alone)
    padded = copy.deepcopy(warm_model())
    padded.resize_token_embeddings(len(TOKENIZER) + 8)
    assert small_run("reinforce", teacher=padded, **alone) == plain
    assert models.vocabulary(padded) == len(TOKENIZER) + 8  # the caller's is as it was


def test_a_run_is_resumed_with_its_teacher(tmp_path):
    given = {"teacher": warm_model(), "model": random_model(), **TAUGHT}
    whole = small_run("reinforce", rollouts=2, **given)
    small_run("reinforce", rollouts=1, checkpoint_dir=tmp_path, **given)
    again = given | {"checkpoint_dir": tmp_path, "resume": True, "rollouts": 2}
    with pytest.raises(UserError, match="teacher was"):
        small_run("reinforce", **again | {"teacher": random_model(1)})
    resumed = small_run("reinforce", **again)
    assert resumed == whole and same_weights(resumed.model, whole.model)
