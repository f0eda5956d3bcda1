"""Settings: plain values of the right type and range, or one sentence that says so.

That each refuses whatever its annotation excludes is in `tests/test_bad_input.py`.
"""

import warnings
import zlib
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from refimpl import ALGORITHMS, Scored, TrainConfig, UserError, collect
from refimpl.advantages import CRITIC_FREE, gdpo
from refimpl.hooks import warn_if_never_right
from refimpl.options import check_fit
from refimpl.pretrained.rewards import Sum
from tests.worlds import TOKENIZER, prepared, prompts_of


def test_the_settings_of_a_paper_hold_unless_they_are_given():
    off = TrainConfig(dynamic_sampling=False, overlong_share=0.0, router_shift=False)
    for name, config, wanted in (
        ("dapo", TrainConfig(), (True, 0.2, None)),
        ("dapo", off, (False, 0.0, False)),
        ("grpo", TrainConfig(), (None, None, None)),
        ("rspo", TrainConfig(), (None, None, True)),
        ("rspo", off, (False, 0.0, False)),
    ):
        found, _ = check_fit(config, ALGORITHMS[name])
        settings = asdict(found)
        names = ("dynamic_sampling", "overlong_share", "router_shift")
        assert tuple(settings[name] for name in names) == wanted
    assert prepared("dapo").config.dynamic_sampling is True
    given = replace(off, hyperparameters={"epsilon": 0.1})
    _, hyperparameters = check_fit(given, ALGORITHMS["grpo"])
    assert hyperparameters == {"epsilon_low": 0.1, "epsilon_high": 0.1}


def test_when_a_sampler_cannot_stand_for_the_old_policy():
    """Not in bfloat16 either, which rounds otherwise with a cache."""
    other = [{"rollout_dtype": "bfloat16"}, {"rollout_dtype": "int8"}, {"top_k": 3}]
    other += [{"router_noise": 0.1}, {"top_p": 0.9}, {"sampler_delay": 1}]
    other += [{"dtype": "bfloat16"}]
    assert all(TrainConfig(**given).mismatch for given in other)
    same = [{}, {"rollout_dtype": "float32"}, {"top_p": 1.0}]
    assert not any(TrainConfig(**given).mismatch for given in same)


def scalars(value) -> list:
    """One number as NumPy and torch hold it."""
    kind = {bool: np.bool_, int: np.int64, float: np.float64}[type(value)]
    return [kind(value), np.array(value), torch.as_tensor(np.array(value))]


def test_a_scalar_becomes_a_plain_number_that_can_be_stored():
    settings = {"overlong_filtering": True, "rollouts": 3, "learning_rate": 0.5}
    for name, value in settings.items():
        for scalar in scalars(value):
            plain = getattr(TrainConfig(**{name: scalar}), name)
            assert type(plain) is type(value) and plain == value
    for scalar in scalars(0.5):
        plain = ALGORITHMS["sapo"].check_hyperparameters({"tau_pos": scalar})
        assert type(plain["tau_pos"]) is float


def of_length(prompts, completions, **_):
    """All alike where a sum has an even number of terms."""
    pairs = zip(prompts, completions, strict=True)
    return [len(c) % 7 if p.count("+") % 2 == 0 else 1.0 for p, c in pairs]


def half_the_groups(prompts, completions, **_):
    """All alike in the second half of a round."""
    return [x if n < 8 else 1.0 for n, x in enumerate(of_text(prompts, completions))]


def of_text(prompts, completions, **_):
    return [zlib.crc32(c.encode()) % 97 / 97 for c in completions]


def test_gdpo_is_told_the_components_and_their_weights():
    """Of the rows that are left, whose groups dynamic sampling has chosen. The sum of
    the rewards is the same for all answers, which says nothing about the parts."""

    def rest(prompts, completions, **_):
        return [-2 * x for x in of_text(prompts, completions)]

    same = Sum({"text": of_text, "rest": rest}, weights=(1.0, 0.5))
    _, row = collect(run := prepared(reward=same, advantage="gdpo"), 0)
    assert row["reward_std"] == 0 and row["frac_reward_zero_std"] < 1
    run.drawn.correct.zero_()  # no answer is right, and still there is much to learn
    with warnings.catch_warnings(action="error"):
        warn_if_never_right(run, 0)
    # What weighs nothing keeps no group alive
    watched = Sum({"some": half_the_groups, "watched": of_text}, weights=(1.0, 0.0))
    kept = {"advantage": "gdpo", "dynamic_sampling": True}
    batch, row = collect(prepared(reward=watched, **kept), 0)
    assert row["sampling/rounds"] == 2 and batch.advantages.any()
    assert (batch.advantages != 0).any(-1).view(4, 4).any(-1).all()
    total = Sum({"length": of_length, "text": of_text}, weights=(1.0, 0.5))
    run = prepared(reward=total, advantage="gdpo", dynamic_sampling=True)
    rollout = (batch := collect(run, 0)[0]).rollout
    told = prompts_of(rollout), rollout.texts(TOKENIZER)
    paid = torch.tensor([of_length(*told), of_text(*told)]).T
    known = {"components": paid, "weights": (1.0, 0.5)}
    wanted = gdpo(Scored(paid.sum(-1), rollout.group, **known))
    assert torch.allclose(batch.advantages[:, 0], wanted, atol=1e-5)
    for given, words in (
        ({"overlong_share": 0.2}, "gdpo cannot be combined"),
        ({"beta": 0.1, "kl_in": "reward"}, "gdpo cannot be combined"),
        ({"algorithm": "ppo"}, "advantage has no effect without a critic-free method"),
    ):
        with pytest.raises(UserError, match=words):
            prepared(**{"reward": total, "advantage": "gdpo"} | given)
    with pytest.raises(UserError, match="gdpo' needs a reward with components"):
        collect(prepared(advantage="gdpo"), 0)


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_every_critic_free_method_takes_every_advantage(name):
    run = prepared("sapo", advantage=name, reward=Sum({"text": of_text}))
    rollout = (batch := collect(run, 0)[0]).rollout
    r = torch.tensor(of_text(None, rollout.texts(TOKENIZER)))
    scored = Scored(r, rollout.group, rollout.mask, components=r[:, None])
    wanted, usual = (CRITIC_FREE[n](scored).view(len(r), -1) for n in (name, "grpo"))
    assert torch.allclose(batch.advantages, wanted.expand_as(rollout.mask), atol=1e-5)
    assert (wanted - usual).abs().max() > 0.01 or name == "grpo"


def test_the_environment_names_the_device_of_a_run_that_names_none(monkeypatch):
    monkeypatch.setenv("REFIMPL_DEVICE", "elsewhere")
    assert TrainConfig().device == "elsewhere"
    assert TrainConfig(device="cpu").device == "cpu"
