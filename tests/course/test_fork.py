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
