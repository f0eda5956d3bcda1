"""Objects handed to `train` do what the settings of that name do, and no less."""

from functools import cache, partial

import pytest

from refimpl import checkpoint
from refimpl.hooks import Samples
from refimpl.logprobs import log_probs
from refimpl.loss_terms import KL, Entropy, SamplerMismatch
from refimpl.options import hooks_for
from refimpl.samplers import Delayed, Rounded
from tests.worlds import (
    fixed_noise,
    prepared,
    random_moe,
    same_weights,
    small_run,
    warm_model,
)

run = partial(small_run, reward=fixed_noise, rollouts=2, max_new_tokens=12)
plain = cache(run)
CUT = {"token_truncate": (0.9, 1.0)}
PAIRS = {
    "entropy": ({"entropy_bonus": 0.3}, {"loss_terms": [Entropy(0.3)]}),
    "kl": ({"beta": 0.4}, {"loss_terms": [KL(0.4)]}),
    "late": ({"sampler_delay": 1}, {"sampler": Delayed(1)}),
    "rounded, cut": (
        {"rollout_dtype": "int8", "corrections": CUT},
        {
            "sampler": Rounded(),
            "corrections": [SamplerMismatch({"token_truncate": [0.9, 1.0]})],
        },
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_object_handed_in_is_the_setting_of_that_name(name):
    settings, objects = PAIRS[name]
    by_setting, by_object = run(**settings), run(**objects)
    assert by_object == by_setting and by_object != plain()
    assert same_weights(by_object.model, by_setting.model)


@pytest.mark.parametrize("make", [warm_model, random_moe])
def test_a_reader_of_ones_own_is_tried_and_leaves_no_gradient(make):
    """Also with responses of one token, and in a rounded precision."""
    for settings in ({"max_new_tokens": 1}, {"dtype": "bfloat16"}):
        run = prepared(model=make(), log_probs=lambda *x: log_probs(*x), **settings)
        assert all(p.grad is None for p in run.model.parameters())


def test_a_checkpoint_is_saved_after_the_other_hooks_wherever_it_stands(tmp_path):
    hooks = [checkpoint.Checkpoint(tmp_path), lambda run, step: None, Samples()]
    assert hooks_for(hooks, False, None, False, False)[2:5] == [*hooks[1:], hooks[0]]
    assert max in hooks_for([max], False, None, False, False)  # it has no signature


def test_a_correction_may_measure_a_plain_number():
    def measured(part, reading, inputs):
        return inputs._replace(metrics={"mine": 0.0})

    assert small_run(rollouts=1, corrections=[measured])["mine"] == [0.0]
