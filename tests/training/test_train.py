"""The loop: its seed, its model, its task, its evaluations, and what it refuses."""

import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from refimpl import (
    TrainConfig,
    collect,
    evaluate,
    hooks,
    train,
    updates,
)
from tests.worlds import (
    TOKENIZER,
    fixed_noise,
    prepared,
    random_model,
    random_moe,
    same_weights,
    small_run,
)


def test_the_global_generators_neither_move_nor_matter(monkeypatch):
    """Nor does the seed of every GPU, which `torch.manual_seed` would set."""

    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002

    torch.manual_seed(1)
    python, numpy, pytorch = states()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "manual_seed", None)
        first = small_run("ppo", rollouts=2)
    assert states()[:2] == (python, numpy)
    assert torch.equal(states()[2], pytorch)
    torch.manual_seed(2)
    random.seed(2)
    assert small_run("ppo", rollouts=2) == first


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_dtype_of_weights_and_of_what_is_computed(dtype, monkeypatch):
    """Weights stay float32 under autocast; sampling, reading, training, evaluation."""
    asked, scores = [], hooks.scores

    def spy(*arguments, **keywords):
        asked.append(torch.is_autocast_enabled("cpu"))
        return scores(*arguments, **keywords)

    monkeypatch.setattr(hooks, "scores", spy)
    run, seen = prepared(dtype=dtype, rollouts=1), set()
    run.model.lm_head.register_forward_hook(lambda *given: seen.add(given[-1].dtype))
    batch, metrics = collect(run, 0)
    updates(run, batch, 0)
    assert seen == {getattr(torch, dtype)}
    assert ("sampling/kl" in metrics) == (dtype == "bfloat16")
    wide = torch.float64 if dtype == "float64" else torch.float32
    assert {p.dtype for p in run.model.parameters()} == {wide}
    run.history.add(0, dict.fromkeys(("num_tokens", "num_samples"), 0.0), 1.0)
    hooks.evaluate(run, 0)
    assert asked == [dtype == "bfloat16"]


@pytest.mark.parametrize(
    ("name", "mode"), [("ppo", torch.no_grad), ("rspo", torch.inference_mode)]
)
def test_a_run_has_gradients_wherever_it_is_called(name, mode):
    """As in a notebook that once called `set_grad_enabled(False)`. The model may have
    been made there too."""
    make = random_moe if name == "rspo" else random_model
    settings = {"rollouts": 1, "reward": fixed_noise}
    usual = small_run(name, model=make(), **settings)
    with mode():
        here = small_run(name, model=make(), **settings)
        assert not torch.is_grad_enabled()
    assert here == usual and same_weights(here.model, usual.model)


@pytest.mark.parametrize("samples", [1, 4])
def test_the_last_accuracy_is_that_of_the_model_handed_back(samples):
    """Measured with the lengths and the temperature that were trained with."""
    sampling = {"max_new_tokens": 18, "temperature": 0.5, "top_k": 9, "top_p": 0.9}
    history = small_run(rollouts=2, eval_problems=64, eval_samples=samples, **sampling)
    given = {"problems": 64, "samples": samples, **sampling}
    assert history.accuracy == evaluate(history.model, TOKENIZER, **given)
    assert ("accuracy/pass" in history.columns) == (samples > 1)
    if samples > 1:
        assert history.accuracy < history["accuracy/pass"][-1] <= 1


def test_a_run_is_evaluated_every_so_often_and_after_its_last_rollout():
    history = small_run(rollouts=5, eval_every=2)
    measured = [row["accuracy"] is not None for row in history.rows]
    assert measured == [False, True, False, True, True]
    assert history["num_samples"] == [16, 32, 48, 64, 80]
    assert all(seconds > 0 for seconds in history["step_time"])


def test_any_object_with_the_five_names_is_a_world():
    """Of another kind: repeat the digit. Only what is held out is evaluated on."""
    drawn = []

    def rows(kind, n, seed):
        drawn.append((kind, n))
        return [{"prompt": f"{(seed + i) % 10}="} for i in range(n)]

    def repeated(prompts, completions):
        return [float(c.startswith(p[0])) for p, c in zip(prompts, completions)]

    task = SimpleNamespace(reward=repeated, habits=("right",))
    task.sample, task.held_out = partial(rows, "train"), partial(rows, "held out")
    task.habit = lambda text: "right" if text[:1].isdigit() else "other"
    history = small_run(model=random_model(), task=task, eval_problems=5)
    assert 0 < history["habit/right"][0] < 1
    tried, trained = [("train", 4), ("held out", 5)], 3 * [("train", 4)]
    assert drawn == [*tried, *trained, ("held out", 5)]


def test_grpo_learns():
    """Eight rollouts take the warm start from a third right to most."""
    history = train("grpo", config=TrainConfig(rollouts=8, seed=0), progress=False)
    assert history["reward"][0] < 0.5
    assert history.accuracy >= 0.75
    assert history["habit/careful"][0] < 0.5 < 0.75 < history["habit/careful"][-1]
