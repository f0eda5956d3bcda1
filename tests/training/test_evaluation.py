"""Held-out problems: mean@k, the unbiased pass@k, and batches that fit in memory."""

from itertools import combinations

import pytest
import torch
from torch import tensor

from refimpl import evaluate, evaluation, sample
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.tasks import Arithmetic
from tests.worlds import TOKENIZER, random_model


def answers(*right: int, n: int) -> torch.Tensor:
    """A row per problem: so many of its n answers are right."""
    return tensor([[1.0] * c + [0.0] * (n - c) for c in right])


def test_it_is_the_share_of_subsets_that_hold_a_right_answer():
    """So its expectation is 1 − (1 − p)ᵏ, which that of 1 − (1 − c/n)ᵏ is not. Large
    numbers lose nothing."""
    assert pass_at(answers(1, n=10_000), 5_000) == 0.5
    for n in range(1, 7):
        for c in range(n + 1):
            found = answers(c, n=n)
            for k in range(1, n + 1):
                subsets = [max(s) for s in combinations(found[0].tolist(), k)]
                share = sum(subsets) / len(subsets)
                assert pass_at(found, k) == pytest.approx(share, abs=1e-15)


def test_pass_at_1_is_the_share_of_right_answers():
    """0.5 is not right yet; the mean keeps the scores as they are."""
    found = tensor([[1.0, 0.0, 0.5, 0.75], [0.0, 0.0, 0.25, 0.51]])
    assert pass_at(found, 1) == 3 / 8
    assert mean_at(found) == pytest.approx(3.01 / 8)


class Spy(Arithmetic):
    """Records what is judged; pays a hundredth of an answer's length."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "seen", [])

    def reward(self, prompts, completions, **given):
        self.seen.extend(zip(prompts, completions, given["answer"], strict=True))
        assert len(given["completion_ids"]) == len(completions)
        return [len(c) / 100 for c in completions]


@pytest.mark.parametrize(("seed", "k"), [(0, 1), (5, 3)])
def test_a_problems_answers_are_what_the_sampler_gives_and_stand_in_its_row(seed, k):
    """Held-out problems of this seed, at this length and temperature."""
    task = Spy()
    settings = {"max_new_tokens": 9, "temperature": 0.9, "top_p": 0.95, "seed": seed}
    given = {"problems": 5, "samples": k, **settings}
    found = scores(random_model(), TOKENIZER, task, **given)
    rows = task.held_out(5, seed)
    prompts = [row["prompt"] for row in rows]
    sampled = sample(random_model(), TOKENIZER, prompts, group_size=k, **settings)
    texts = sampled.texts(TOKENIZER)
    asked = [(row["prompt"], row["answer"]) for row in rows for _ in range(k)]
    assert task.seen == [(p, c, a) for (p, a), c in zip(asked, texts)]
    paid = tensor([len(text) / 100 for text in texts], dtype=torch.float64)
    assert torch.equal(found, paid.view(5, k))
    mean = evaluate(random_model(), TOKENIZER, task, **given)
    assert mean == pytest.approx(sum(map(len, texts)) / (500 * k))


def test_a_batch_holds_whole_problems_and_no_more_than_fit(monkeypatch):
    """Of 7 problems with 2 answers each, where 5 answers of 18 tokens' logits fit."""
    seen = []

    def spy(model, tokenizer, prompts, **settings):
        seen.append(len(prompts) * settings["group_size"])
        return sample(model, tokenizer, prompts, **settings)

    monkeypatch.setattr(evaluation, "AT_ONCE", 18 * 5)
    monkeypatch.setattr(evaluation, "sample", spy)
    for given in ({"problems": 7, "samples": 2}, {"problems": 2, "samples": 6}):
        scores(random_model(), TOKENIZER, max_new_tokens=2, **given)
    assert seen == [4, 4, 4, 2, 6, 6]  # a problem is never cut


class Same(Spy):
    """One problem again and again."""

    def held_out(self, n, seed=0):
        return super().held_out(1, 0) * n


def test_every_batch_has_a_seed_of_its_own_and_holds_the_next_problems(monkeypatch):
    """A batch that began with the first one's seed again would repeat it."""
    split, same = Spy(), Same()
    given = {"problems": 10, "samples": 2, "max_new_tokens": 12}
    monkeypatch.setattr(evaluation, "AT_ONCE", 18 * 8)
    for task in (split, same):
        scores(random_model(), TOKENIZER, task, **given)
    prompts = [row["prompt"] for row in split.held_out(10)]
    assert [p for p, _, _ in split.seen][::2] == prompts
    texts = [c for _, c, _ in same.seen]
    assert len({tuple(part) for part in (texts[:4], texts[8:12], texts[16:])}) == 3
