"""A cell with several runs shows how far it is."""

from types import SimpleNamespace

from course.kit import count_rollouts, runs, watched


def test_the_bar_counts_the_rollouts_of_the_current_run():
    said, run = [], SimpleNamespace(config=SimpleNamespace(rollouts=2))
    for _ in watched("ab"):
        for step in range(2):
            count_rollouts(run, step)
            said.append(runs.bars[-1].postfix)
    assert said == ["rollout 1 of 2", "rollout 2 of 2"] * 2
    count_rollouts(run, 0)
    assert runs.bars == []


def test_a_loop_that_was_left_says_after_how_many_runs(capsys):
    for each in (loop := watched("abc", "seeds")):
        if each == "b":
            loop.close()
    assert capsys.readouterr().out == "stopped by you after 1 of 3 seeds\n"
    assert runs.bars == []
