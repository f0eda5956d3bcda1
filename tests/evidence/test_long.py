"""The long run on SmolLM2: what is declared is what runs, and a killed run goes on."""

import json
from dataclasses import asdict, replace

import pytest

from course.real_model import stored as stored_run
from experiments import long, store
from experiments.long import CONFIG, METHODS, Long, effects, judged, report
from refimpl import warm_start
from refimpl.hooks import Bar
from refimpl.tasks import Arithmetic
from tests.worlds import needs

STORED = Long().path


class Toy(Long):
    """The same machinery in the arithmetic world."""

    def given(self, job):
        model, tokenizer, _ = warm_start()
        named = {"algorithm": self.method(job), "config": self.config(job)}
        return named | {"model": model, "tokenizer": tokenizer, "task": Arithmetic()}

    def facets(self, job):
        return job


SMALL = {"rollouts": 9, "eval_every": 4, "eval_problems": 4, "max_new_tokens": 24}
JOB = {"task": long.CHOSEN, "arm": "one-sided 8.8", "seed": 1}


def test_what_is_stored_is_the_beginning_of_what_was_declared(monkeypatch):
    needs("reasoning_gym")
    runs, rows = store.read(STORED)
    monkeypatch.setattr(long, "_weights", lambda: runs["weights"][0])
    declared = [Long().key(job) for job in Long().jobs()]
    assert runs["run"].tolist() == declared[: len(runs)]
    assert runs["ended"].isna().all() and len(rows) == CONFIG.rollouts * len(runs)
    assert long.answers(STORED).keys() == set(runs["run"])


def test_sums_are_learned_and_differences_are_not_as_chapter_13_shows(monkeypatch):
    needs("reasoning_gym")
    monkeypatch.delenv("REFIMPL_SALT", raising=False)  # the stored runs have none
    found = long.by_kind(STORED)
    shown = json.loads(stored_run.FILE.read_text(encoding="utf-8"))["kinds"]
    assert shown.keys() == found.keys()
    for arm, shares in shown.items():
        assert shares == pytest.approx(found[arm], abs=1e-4)
    assert all(sums > 5 * none for sums, _, none in found.values())


@pytest.mark.ci
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    """After rollout 7 of 9, where rollout 5 was the last that had been saved."""
    monkeypatch.setattr(long, "CHECKPOINTS", tmp_path / "runs")
    whole = Toy(tmp_path / "whole", **SMALL).make(JOB)
    steps = []

    def killed_once(self, run, step):
        steps.append(step)
        if steps == [*range(7)]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "__call__", killed_once)
    broken = Toy(tmp_path / "broken", **SMALL)
    with pytest.raises(KeyboardInterrupt):
        broken.make(JOB)
    assert not long.answers(broken.path)
    resumed = Toy(broken.path, **SMALL).make(JOB)
    assert steps[7:] == [5, 6, 7, 8]
    assert resumed == whole and resumed.samples == whole.samples
    assert [s["rollouts"] for s in whole.samples[:: long.SHOWN]] == [0, 4, 8, 9]
    assert whole.rows[0]["before"] < 1
    assert long.answers(broken.path) == {broken.key(JOB): whole.samples}


def stored(path, seeds, gain):
    """Runs of 100 rollouts whose area is 0.5, and `gain(seed)` more for SAPO."""
    with store.Store(path, Long.columns) as kept:
        for seed in range(seeds):
            for arm in METHODS[: 2 if seed == 3 else 3]:  # the fourth is not complete
                more = gain(seed) * (arm == "SAPO 1.0")
                rows = [{"step": n, "reward": 0.5 + more} for n in range(100)]
                rows[0] |= {"before": 0.1, "before/pass": 0.6}
                rows[49] |= {"accuracy": 0.4, "accuracy/pass": 0.5}
                rows[99] |= {"accuracy": 0.4 + more, "accuracy/pass": 0.5}
                spec = asdict(replace(CONFIG, rollouts=100, seed=seed))
                spec |= {"task": "gcd", "arm": arm}
                kept.add(spec, rows, {"seconds": "60"})
    return path


def test_outcomes_are_judged_over_complete_seeds(tmp_path):
    found = effects(stored(tmp_path / "some", 4, lambda seed: 0.1 + 0.001 * seed))
    assert {made.starts for made in found.values()} == {3}
    area = found["SAPO 1.0, area, minus GRPO"]
    assert area.effect == pytest.approx(0.101) and judged(area) == "reproduced"
    assert judged(found["one-sided 8.8, area, minus GRPO"]) == "none that matters"
    assert found["SAPO 1.0 learns on"].effect == pytest.approx(0.101)
    assert judged(found["GRPO learns on"]) == "none that matters"
    assert judged(found["GRPO can do more"]) == "contradicted"
    one = stored(tmp_path / "one", 1, lambda seed: 0.1)
    assert {judged(made) for made in effects(one).values()} == {"too few seeds"}
    assert "too few seeds" in report(one)


def test_a_run_made_again_is_compared_with_the_stored_one(tmp_path):
    ours = stored(tmp_path / "ours", 1, lambda seed: 0.1)
    theirs = stored(tmp_path / "theirs", 1, lambda seed: 0.2)
    lines = long.repeated(ours, theirs).splitlines()[2:]
    assert [line.split()[-4:] for line in lines] == [
        ["100", "100", "0.500", "0.500"],
        ["100", "0", "0.600", "0.700"],
        ["100", "100", "0.500", "0.500"],
    ]
