"""Chapter 16's run: which tokens a bound on the probability drops, and the fork."""

import torch
from torch.testing import assert_close

import refimpl as rl
from course.probability import fork
from tests.worlds import TOKENIZER, random_model


def test_the_fork_is_read_at_the_first_character():
    """Prompts of two lengths; each is read by itself, without padding."""
    model, prompts = random_model(), ["1+2=", "1+2+3="]
    digits = torch.tensor(TOKENIZER.convert_tokens_to_ids([*"0123456789"]))
    given = {"group_size": 3, "seed": 0, "max_new_tokens": 4}
    rollout = rl.sample(model, TOKENIZER, prompts, **given)
    each = []
    for prompt in prompts:
        ids = torch.tensor([TOKENIZER(prompt)["input_ids"]])
        with torch.no_grad():
            each.append(model(ids).logits[0, -1].softmax(-1)[digits].sum())
    found = fork.first_is(model, rollout, digits)
    assert_close(found, torch.stack(each).mean().item(), rtol=0, atol=1e-5)


def test_what_is_counted_as_dropped_has_moved_on_by_more_than_delta(monkeypatch):
    """π_θ − μ > δ where Â > 0, < −δ where Â < 0, token by token, by place."""
    delta, seen, collect = 0.02, [], rl.collect

    def watched(this, step):
        batch, described = collect(this, step)
        with torch.no_grad():
            logp = rl.log_probs(this.model, batch.rollout)[0]
        seen.append((batch, logp))
        return batch, described

    monkeypatch.setattr(rl, "collect", watched)
    found = fork.run(delta, rollouts=2, delay=1)
    tokens, dropped = torch.zeros(2, 2, fork.PLACES)
    shares = []
    for batch, logp in seen:
        mask, moved = batch.mask.bool(), logp.exp() - batch.rollout.logp.exp()
        advantages = batch.advantages.expand_as(logp)
        up, down = mask & (advantages > 0), mask & (advantages < 0)
        gone = up & (moved > delta), down & (moved < -delta)
        for row, (pushed, cut) in enumerate(zip((up, down), gone)):
            tokens[row, : mask.shape[1]] += pushed.sum(0)
            dropped[row, : mask.shape[1]] += cut.sum(0)
        shares.append(((gone[0] | gone[1]).sum() / mask.sum()).item())
    assert_close(found.tokens, tokens)
    assert_close(found.dropped, dropped)
    assert found.share == shares and (dropped.sum(1) > 0).all()
