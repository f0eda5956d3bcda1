"""Held-out problems: mean@k, the unbiased pass@k, and batches that fit in memory."""

import math
from itertools import combinations

import pytest
import torch
from torch import tensor

from refimpl import evaluation, trainer
from refimpl.evaluation import AT_ONCE, evaluate, maj_at, mean_at, pass_at, scores
from refimpl.rewards import columns
from refimpl.rollout import sample
from refimpl.tasks import Arithmetic
from tests.worlds import TOKENIZER, random_model, small_run, warm_model

# The estimator


def answers(*right: int, n: int) -> torch.Tensor:
    """A row per problem: so many of its n answers are right."""
    return tensor([[1.0] * c + [0.0] * (n - c) for c in right])


@pytest.mark.parametrize(
    ("right", "n", "k", "wanted"),
    [
        ([2], 4, 2, 5 / 6),  # 1 − C(2,2) / C(4,2)
        ([1], 4, 2, 1 / 2),  # 1 − C(3,2) / C(4,2)
        ([0], 4, 2, 0.0),
        ([3], 4, 2, 1.0),  # two draws cannot both be the wrong one
        ([0, 1, 2, 4], 4, 2, (0 + 1 / 2 + 5 / 6 + 1) / 4),
        ([3], 10, 5, 1 - 21 / 252),
        ([1, 0], 4, 4, 1 / 2),  # of all four one is right
    ],
)
def test_pass_at_by_hand(right, n, k, wanted):
    assert pass_at(answers(*right, n=n), k) == pytest.approx(wanted, abs=1e-15)


def test_it_is_the_share_of_subsets_that_hold_a_right_answer():
    for n in range(1, 7):
        for c in range(n + 1):
            found = answers(c, n=n)
            for k in range(1, n + 1):
                subsets = [max(s) for s in combinations(found[0].tolist(), k)]
                share = sum(subsets) / len(subsets)
                assert pass_at(found, k) == pytest.approx(share, abs=1e-15)


def expectation(estimate, p: float, n: int, k: int) -> float:
    """Over the binomial number of right answers, exactly."""
    return sum(
        math.comb(n, c) * p**c * (1 - p) ** (n - c) * estimate(answers(c, n=n), k)
        for c in range(n + 1)
    )


def plug_in(found, k):
    """1 − (1 − c/n)ᵏ, which is biased."""
    return (1 - (1 - found.mean(-1)) ** k).mean().item()


def test_it_is_unbiased_and_the_obvious_estimate_is_not():
    for p, n, k in ((0.1, 8, 4), (0.3, 10, 5), (0.02, 16, 8)):
        truth = 1 - (1 - p) ** k
        assert expectation(pass_at, p, n, k) == pytest.approx(truth, abs=1e-12)
        assert abs(expectation(plug_in, p, n, k) - truth) > 1e-3


def test_large_numbers_lose_nothing():
    """One right answer is among half of them with probability one half, exactly."""
    assert pass_at(answers(1, n=10_000), 5_000) == 0.5
    assert pass_at(answers(1, n=10_000), 1) == 1e-4


def test_pass_at_1_is_the_share_of_right_answers():
    """0.5 is not right yet; the mean keeps the scores as they are."""
    found = tensor([[1.0, 0.0, 0.5, 0.75], [0.0, 0.0, 0.25, 0.51]])
    assert pass_at(found, 1) == 3 / 8
    assert mean_at(found) == pytest.approx(3.01 / 8)


def test_more_draws_than_answers_are_refused():
    with pytest.raises(ValueError, match=r"k must be at most 4, .* got 5: .*samples=5"):
        pass_at(answers(1, n=4), 5)


# The scores


class Spy(Arithmetic):
    """Records what is judged; pays the length of an answer."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "seen", [])

    def reward(self, prompts, completions, **given):
        self.seen.extend(zip(prompts, completions, given["answer"], strict=True))
        return [float(len(c)) for c in completions]


def test_one_answer_each_is_what_the_sampler_gives():
    """The numbers that were measured before there was a k."""
    task, settings = Arithmetic(), {"max_new_tokens": 20, "temperature": 0.9}
    rows = task.held_out(64, 5)
    prompts = [row["prompt"] for row in rows]
    rollout = sample(warm_model(), TOKENIZER, prompts, seed=5, **settings)
    wanted = task.reward(prompts, rollout.texts(TOKENIZER), **columns(rows))
    given = {"problems": 64, "seed": 5, **settings}
    found = scores(warm_model(), TOKENIZER, **given)
    assert found.tolist() == [[w] for w in wanted]
    assert evaluate(warm_model(), TOKENIZER, **given) == sum(wanted) / 64
    assert trainer.evaluate is evaluate


def test_the_answers_to_a_problem_stand_in_its_row():
    task = Spy()
    settings = {"max_new_tokens": 9, "seed": 2}
    found = scores(random_model(), TOKENIZER, task, problems=5, samples=3, **settings)
    rows = task.held_out(5, 2)
    assert [(p, a) for p, _, a in task.seen] == [
        (row["prompt"], row["answer"]) for row in rows for _ in range(3)
    ]
    lengths = tensor([[len(c)] for _, c, _ in task.seen]).view(5, 3)
    assert found.tolist() == lengths.tolist()
    assert found.dtype == torch.float64
    assert len(set(found.flatten().tolist())) > 3
    prompts = [row["prompt"] for row in rows]
    texts = sample(random_model(), TOKENIZER, prompts, group_size=3, **settings)
    assert [c for _, c, _ in task.seen] == texts.texts(TOKENIZER)


def calls(monkeypatch, **given) -> list[int]:
    """How many answers each call of the sampler wrote."""
    seen = []

    def spy(model, tokenizer, prompts, **settings):
        seen.append(len(prompts) * settings["group_size"])
        return sample(model, tokenizer, prompts, **settings)

    monkeypatch.setattr(evaluation, "sample", spy)
    scores(random_model(), TOKENIZER, max_new_tokens=2, **given)
    return seen


def test_the_toy_is_one_batch_and_a_large_model_is_not(monkeypatch):
    assert calls(monkeypatch, problems=256, samples=4) == [1024]
    assert AT_ONCE // 49_152 == 85
    monkeypatch.setattr(evaluation, "AT_ONCE", 18 * 100)  # the tiny model's 18 tokens
    assert calls(monkeypatch, problems=60, samples=4) == [100, 100, 40]


def test_a_batch_holds_whole_problems_and_no_more_answers_than_asked(monkeypatch):
    assert calls(monkeypatch, problems=7, samples=2, batch=5) == [4, 4, 4, 2]
    assert calls(monkeypatch, problems=3, samples=4, batch=1) == [4, 4, 4]
    assert calls(monkeypatch, problems=9, batch=9) == [9]


class Same(Spy):
    """One problem again and again."""

    def held_out(self, n, seed=0):
        return super().held_out(1, 0) * n


def test_every_problem_is_answered_once_with_dice_of_its_own():
    """A batch that began with the seed's dice again would repeat the first."""
    split, task, one = Spy(), Same(), Same()
    given = {"problems": 10, "samples": 2, "max_new_tokens": 12, "batch": 8}
    scores(random_model(), TOKENIZER, split, **given)
    assert [p for p, _, _ in split.seen][::2] == [
        row["prompt"] for row in split.held_out(10)
    ]
    scores(random_model(), TOKENIZER, task, **given)
    texts = [c for _, c, _ in task.seen]
    assert len({tuple(part) for part in (texts[:4], texts[8:12], texts[16:])}) == 3
    scores(random_model(), TOKENIZER, one, **{**given, "problems": 4})
    assert [c for _, c, _ in one.seen] == texts[:8]


def test_rows_that_are_none_are_refused():
    class Empty(Arithmetic):
        def held_out(self, n, seed=0):
            return []

    with pytest.raises(ValueError, match=r"task\.held_out must return a list"):
        evaluate(random_model(), TOKENIZER, Empty())


# In a run


def test_a_run_records_mean_and_pass_at_k():
    history = small_run(
        rollouts=3, eval_every=2, eval_samples=4, eval_problems=32, temperature=0.9
    )
    settings = {"problems": 32, "samples": 4, "max_new_tokens": 24, "temperature": 0.9}
    found = scores(history.model, TOKENIZER, **settings)
    last = history.rows[-1]
    assert last["accuracy"] == history.accuracy == mean_at(found)
    assert last["accuracy/pass"] == pass_at(found, 4) > mean_at(found) > 0
    assert history.rows[0]["accuracy"] is history.rows[0]["accuracy/pass"] is None
    assert history.rows[1]["accuracy/pass"] is not None


def test_with_one_answer_each_there_is_no_pass_column():
    assert "accuracy/pass" not in small_run(rollouts=1).columns


def test_a_resumed_run_forgets_what_only_its_end_measured(tmp_path):
    settings = {"eval_every": 3, "eval_samples": 2}
    whole = small_run(rollouts=4, **settings)
    small_run(rollouts=2, checkpoint_dir=tmp_path, **settings)
    resumed = small_run(rollouts=4, checkpoint_dir=tmp_path, resume=True, **settings)
    assert resumed == whole
    assert resumed.rows[1]["accuracy/pass"] is None


def test_the_commonest_of_a_lot_decides_and_the_first_on_a_tie():
    """Lots of four: 7 7 8 9 (7 wins), 8 8 7 7 (a tie, 8 came first); one is left."""
    said = [["7", "7", "8", "9", "8", "8", "7", "7", "7"]]
    right = torch.tensor([[float(x == "7") for x in said[0]]]).double()
    assert maj_at(right, said, 4) == 0.5
    assert maj_at(right, said, 8) == 1.0  # five of the first eight
    assert maj_at(right, said, 1) == pytest.approx(pass_at(right, 1))
    assert maj_at(1 - right, said, 4) == 0.5


def test_a_majority_is_right_more_often_than_one_answer_where_right_is_commonest():
    """40 % right, wrong answers spread over ten: of 9 answers the commonest is right in
    most cases."""
    dice = torch.Generator().manual_seed(0)
    is_right = torch.rand(400, 9, generator=dice) < 0.4
    wrong = torch.randint(10, (400, 9), generator=dice)
    said = [
        ["right" if r else str(w) for r, w in zip(*row)]
        for row in zip(is_right.tolist(), wrong.tolist())
    ]
    found = maj_at(is_right.double(), said, 9)
    assert found > 0.75 > 0.45 > pass_at(is_right.double(), 1)
