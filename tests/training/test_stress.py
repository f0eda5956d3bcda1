"""The stress command: its arms are what they say, and it goes on where it stopped."""

from dataclasses import replace

import pytest
import torch

from course import DATA
from refimpl.algorithms import from_gate
from refimpl.curves import curve
from refimpl.experiments import stress


def test_every_arm_can_run_in_every_setting():
    for arm in stress.ARMS.values():
        algorithm, changed = arm.build()
        for setting in stress.SETTINGS.values():
            config = replace(setting, **changed)
            config.check(algorithm)
            completed = config.completed(algorithm)
            assert completed.updates_per_rollout == 16
            assert not completed.dynamic_sampling and not completed.overlong_share


def test_the_one_sided_gate_is_sapos_moving_on_and_open_coming_back():
    r = torch.tensor([0.4, 0.9, 1.1, 1.8], dtype=torch.float64)
    mine = from_gate(stress.one_sided(8.8))
    for sign, open_below in ((1.0, True), (-1.0, False)):
        gated = curve("sapo", sign, r, tau_pos=8.8, tau_neg=8.8).weight
        found = curve(mine, sign, r).weight
        back = (r < 1) if open_below else (r > 1)
        expected = torch.where(back, r, gated)
        assert torch.allclose(found, expected, atol=1e-10)


def test_a_one_sided_gate_can_be_open_for_one_sign_only():
    r = torch.tensor([0.4, 1.8], dtype=torch.float64)
    soft = curve("sapo", 1.0, r, tau_pos=8.8).weight / r
    for rising, falling in ((True, False), (False, True), (False, False)):
        gate = stress.one_sided(8.8, rising, falling)
        found = torch.stack([gate(r, torch.ones(2)), gate(r, -torch.ones(2))])
        expected = torch.stack([soft, soft])
        expected[0, 0] = 1.0 if rising else soft[0]
        expected[1, 1] = 1.0 if falling else soft[1]
        assert torch.allclose(found, expected, atol=1e-12)


def test_the_gate_is_finite_for_every_ratio_the_loss_can_see():
    r = torch.tensor([[2e-9, 1.0, 4.9e8]])
    for sign in (1.0, -1.0):
        assert torch.isfinite(stress.one_sided(8.8)(r, sign * torch.ones(1, 3))).all()


def test_what_is_in_the_file_is_not_run_again(tmp_path, monkeypatch):
    out = tmp_path / "stress.csv"
    header = ["setting", "arm", "seed", *stress.COLUMNS]
    row = ["hard", "GRPO", 0, *["0.5"] * len(stress.COLUMNS)]
    stress._append(out, [header, row])
    before = out.read_text(encoding="utf-8")
    monkeypatch.setattr(stress, "_run", None)  # any run would fail
    stress.stress(out, ["GRPO"], ["hard"], seeds=1)
    assert out.read_text(encoding="utf-8") == before
    assert stress.read(out)[0]["accuracy"] == "0.5"
    assert stress.read(tmp_path / "none.csv") == []


@pytest.mark.parametrize(
    ("arms", "settings"), [(["GROP"], ["hard"]), (["GRPO"], ["tough"])]
)
def test_an_unknown_arm_or_setting_is_named_before_any_work(arms, settings, tmp_path):
    with pytest.raises(ValueError, match=r"unknown '(GROP|tough)'; one of: "):
        stress.stress(tmp_path / "stress.csv", arms, settings)
    assert not (tmp_path / "stress.csv").exists()


def test_an_arm_that_needs_routers_is_refused_on_a_dense_model(tmp_path):
    with pytest.raises(ValueError, match=r"RSPO need a mixture of experts: .* hard"):
        stress.stress(tmp_path / "stress.csv", ["GRPO", "RSPO"], ["moe-hard", "hard"])
    assert not (tmp_path / "stress.csv").exists()
    needed = {n for n, arm in stress.ARMS.items() if needs_routers(arm)}
    assert needed == stress.NEED_MOE


def needs_routers(arm) -> bool:
    algorithm, changed = arm.build()
    return bool(replace(stress.HARD, **changed).completed(algorithm).needs_moe)


def test_stored_runs_are_read_by_arm_and_by_seed():
    def row(arm, seed, step, accuracy, reward, setting="hard"):
        own = {"setting": setting, "arm": arm, "seed": seed, "step": step}
        return {**own, "accuracy": accuracy, "reward": reward}

    rows = [
        row("SAPO 8.8", "0", "0", "", "0.3"),
        row("SAPO 8.8", "0", "29", "0.5", "0.6"),
        row("GRPO", "1", "0", "", "0.1"),
        row("GRPO", "1", "29", "0.7", "0.2"),
        row("GRPO", "0", "29", "0.9", "0.8"),
        row("GRPO", "0", "29", "0.1", "0.4", setting="mild"),
    ]
    assert stress.final(rows, "hard") == {"GRPO": [0.7, 0.9], "SAPO 8.8": [0.5]}
    assert list(stress.final(rows, "hard")) == ["GRPO", "SAPO 8.8"]  # as in ARMS
    assert stress.column(rows, "hard", "GRPO", "reward") == [[0.1, 0.2], [0.8]]
    assert stress.column(rows, "hard", "GRPO", "reward", 1) == [[0.1], [0.8]]


def test_every_stored_run_is_whole_and_known():
    rows = stress.read(DATA / "stress.csv")
    steps = {}
    for row in rows:
        assert row["arm"] in stress.ARMS
        key = row["setting"], row["arm"], row["seed"]
        steps.setdefault(key, []).append(int(row["step"]))
    for (setting, _, _), seen in steps.items():
        assert seen == list(range(stress.SETTINGS[setting].rollouts))
