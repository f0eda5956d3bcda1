"""A frozen teacher beside the reference: distillation as an advantage."""

import copy
from dataclasses import replace

import pytest
import torch

from refimpl import UserError, collect, models, updates
from refimpl.kl import divergence
from refimpl.logprobs import log_probs
from refimpl.loss_terms import KL, Distillation, Entropy
from tests.worlds import (
    ROUNDING,
    TOKENIZER,
    always_one,
    prepared,
    random_model,
    rolled_out,
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
    small_run("reinforce", rollouts=1, checkpoint_dir=tmp_path, **given)
    again = given | {"checkpoint_dir": tmp_path, "resume": True, "rollouts": 2}
    with pytest.raises(UserError, match="teacher was"):
        small_run("reinforce", **again | {"teacher": random_model(1)})
    assert len(small_run("reinforce", **again)) == 2


@pytest.mark.parametrize("term", [Distillation(0.5, "forward"), Distillation(top_k=3)])
def test_a_loss_over_the_vocabulary_is_the_divergence_of_every_token(term):
    """Row by row, without padding and at a temperature, against the term on all rows,
    on single ones, and on rows with garbage behind them."""
    given = {"model": random_model(), "teacher": warm_model(), "reward": always_one}
    run, batch, _ = rolled_out("reinforce", loss_terms=[term], temperature=0.7, **given)
    (added,) = run.loss_terms
    weight = batch.mask * torch.linspace(0.5, 2, batch.mask.numel()).view_as(batch.mask)
    rollout, expected = batch.rollout, 0.0
    for i, (first, end) in enumerate(zip(rollout.prompt_length, rollout.end)):
        logits = (
            model(rollout.ids[i : i + 1, :end]).logits
            for model in (run.model, run.teacher)
        )
        pair = ((x[0, first - 1 : end - 1] / 0.7).log_softmax(-1) for x in logits)
        apart = divergence(*pair, term.kind, term.top_k)
        expected += term.beta * (apart * weight[i, : end - first]).sum().item()
    whole = added(batch, None, weight)[0]
    near = pytest.approx(expected, rel=ROUNDING)
    assert whole.item() == near
    alone = (torch.tensor([i]) for i in range(len(batch)))
    parts = [(batch.rows(i), weight[i]) for i in alone]
    rows = (added(x, None, w[:, : x.mask.shape[1]])[0].item() for x, w in parts)
    assert sum(rows) == near
    wide = torch.cat([rollout.ids, torch.full((len(batch), 5), 3)], 1)
    padded = replace(batch, rollout=replace(rollout, ids=wide))
    assert added(padded, None, weight)[0].item() == near
    assert all(p.grad is None for p in run.teacher.parameters())


def test_a_student_of_whole_distributions_comes_nearer_to_its_teacher():
    """With a reward that says nothing; and no run has a teacher that nothing reads."""
    both = {"model": random_model(), "teacher": warm_model()}
    given = both | {"reward": always_one, "rollouts": 4, "learning_rate": 2e-3}
    for term in (Distillation(), Distillation(2.0, "js", top_k=4)):
        taught = small_run("reinforce", loss_terms=[term], **given)
        assert taught["teacher_kl"][-1] < 0.9 * taught["teacher_kl"][0]
    with pytest.raises(UserError, match="nothing in this run reads the teacher"):
        prepared("reinforce", loss_terms=[KL(0.1), Entropy(0.1)], **both)
    with pytest.raises(UserError, match="Distillation needs"):
        prepared("reinforce", loss_terms=[Distillation()])
