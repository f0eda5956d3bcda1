"""The stored runs of a pretrained model: what they are, without making them."""

from dataclasses import replace

from experiments import real
from experiments.store import read
from refimpl import warm_start
from refimpl.tasks import Arithmetic
from tests.worlds import needs

needs("reasoning_gym")


def spec(setting: str, arm: str) -> dict:
    return real.RUNS.spec({"setting": setting, "arm": arm, "seed": 0})


def test_what_the_controls_pay():
    texts = ["4 + 6 = 10", "10.", "It is 11", "no number", ""]
    assert real.format_reward(None, texts) == [1, 1, 1, 0, 0]
    answers = ["10", "10", "11", "0", "0"]
    assert real.whole_answer(None, texts, answer=answers) == [0] * 5
    assert real.whole_answer(None, [" 10\n", "10"], answer=["10", "1"]) == [1, 0]
    coins = real.random_reward(["q"] * 400, ["the same answer"] * 400)
    assert 140 < sum(coins) < 260 and set(coins) == {0.0, 1.0}
    assert coins == real.random_reward(["q"] * 400, ["the same answer"] * 400)


def test_a_run_is_stored_once_with_what_it_measured(tmp_path, monkeypatch):
    """With the toy in place of the model; an arm is trained on its own reward, which
    pays one answer in four, whatever it says."""
    made, small = [], {"rollouts": 2, "eval_problems": 4, "minibatches": 8}
    fourth = lambda completions, **_: [i % 4 == 0 for i in range(len(completions))]  # noqa: E731
    load = lambda name: made.append(name) or warm_start()[:2]  # noqa: E731
    monkeypatch.setattr(real, "load", load)
    monkeypatch.setattr(real.RUNS, "weights", lambda job: "b0121a88")
    monkeypatch.setattr(real, "SETTINGS", {"gentle": replace(real.GENTLE, **small)})
    monkeypatch.setattr(real, "TASKS", {"sums": Arithmetic})
    monkeypatch.setattr(real, "Chat", lambda task, *_: task)
    columns = [x for x in real.RUNS.columns if x[:6] != "after/" or x == "after/sums"]
    monkeypatch.setattr(real.RUNS, "columns", columns)
    monkeypatch.setitem(real.REWARDS, "random", fourth)
    for _ in range(2):
        real.real(("GRPO", "random reward"), ("gentle",), 1, out=tmp_path / "real")
    assert len(made) == 2 + 2  # each call looks whether it is there; two runs
    runs, rows = read(tmp_path / "real")
    assert runs["arm"].tolist() == ["GRPO", "random reward"]
    assert runs["weights"].eq("b0121a88").all() and runs["seconds"].gt(0).all()
    assert rows["step"].tolist() == [0, 1] * 2
    assert rows["after/sums"].notna().tolist() == [False, True] * 2
    assert rows["reward"][:2].ne(0.25).all() and rows["reward"][2:].eq(0.25).all()
