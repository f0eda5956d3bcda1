"""Objects handed to `train` do what the settings of that name do, and no less."""

from functools import partial

import pytest

from refimpl import ALGORITHMS, UserError
from refimpl.checkpoint import Checkpoint
from refimpl.logprobs import log_probs
from refimpl.loss_terms import KL, Entropy, SamplerMismatch
from refimpl.samplers import Delayed, Rounded
from tests.worlds import (
    fixed_noise,
    prepared,
    random_moe,
    same_weights,
    small_run,
    warm_model,
)

run = partial(small_run, reward=fixed_noise)


CUT = {"token_truncate": 1.0}
PAIRS = {
    "entropy": ({"entropy_bonus": 0.3}, {"loss_terms": [Entropy(0.3)]}),
    "kl": ({"beta": 0.4}, {"loss_terms": [KL(0.4)]}),
    "late": ({"sampler_delay": 1}, {"sampler": Delayed(1)}),
    "rounded, cut": (
        {"rollout_dtype": "int8", "corrections": CUT},
        {"sampler": Rounded(), "corrections": [SamplerMismatch(CUT)]},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_object_handed_in_is_the_setting_of_that_name(name):
    settings, objects = PAIRS[name]
    by_setting, by_object = run(**settings), run(**objects)
    assert by_object == by_setting and by_object != run()
    assert same_weights(by_object.model, by_setting.model)


class Bare:
    """A term of one's own, whose repr is an address."""

    def __call__(self, part, reading, weight):
        return -0.1 * (reading.entropy * weight).sum(), {}


def test_a_run_is_resumed_with_the_same_objects_and_no_others(tmp_path):
    """By class and fields; of an object without a repr by its class."""
    mine = {"loss_terms": [Bare(), KL(0.1, "k2")], "sampler": Delayed(2)}
    run(rollouts=1, checkpoint_dir=tmp_path, **mine)
    again = partial(run, rollouts=2, checkpoint_dir=tmp_path, resume=True)
    for other in (
        {"loss_terms": []},
        {"loss_terms": [Bare(), KL(0.1, "k3")]},
        {"loss_terms": [Bare(), KL(0.2, "k2")]},
        {"sampler": Delayed(1)},
        {"sampler": Rounded()},
    ):
        with pytest.raises(UserError, match="objects was"):
            again(**mine | other)
    with pytest.raises(UserError, match="checkpoint_dir and Checkpoint"):
        again(**mine, hooks=[Checkpoint(tmp_path, resume=True)])
    assert len(again(loss_terms=[Bare(), KL(0.1, "k2")], sampler=Delayed(2))) == 2


@pytest.mark.parametrize("name", ALGORITHMS)
def test_objects_that_fit_are_taken_by_every_method(name):
    """Whatever is tried before a run: also with responses of one token, in a rounded
    precision, and with routers."""
    shifts = ALGORITHMS[name].training.get("router_shift")
    given = {"model": random_moe() if shifts else warm_model(), "reward": fixed_noise}
    given |= {
        "loss_terms": [Entropy(0.3), KL(0.4)],
        "log_probs": lambda *x: log_probs(*x),
    }
    given |= {"corrections": [SamplerMismatch({"token_reject": (0.5, 2.0)})]}
    for settings in ({"max_new_tokens": 1}, {"dtype": "bfloat16"}):
        run = prepared(name, **given, **settings)
        assert run.handed_in and all(p.grad is None for p in run.model.parameters())
