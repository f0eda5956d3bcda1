"""The loop: its seed, its model, its evaluations, and what it refuses."""

import random
import threading
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from refimpl import collect as collecting
from refimpl import trainer
from refimpl.algorithms import ALGORITHMS
from refimpl.collect import collect
from refimpl.models import make_critic
from refimpl.tasks import Arithmetic, make_tokenizer
from refimpl.trainer import StalenessError, TrainConfig, evaluate, train
from refimpl.update import update
from tests.worlds import (
    COURSE,
    ROUNDING,
    SMALL,
    TOKENIZER,
    always_one,
    fixed_noise,
    gpt2,
    largest_difference,
    prepared,
    random_model,
    random_moe,
    same_weights,
    small_run,
    warm_model,
)

# The seed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_seed_decides_the_run(algorithm):
    settings = {}
    if ALGORITHMS[algorithm].training.get("router_shift"):
        settings = {"model": random_moe(), "reward": fixed_noise}
    first = small_run(algorithm, seed=3, **settings)
    second = small_run(algorithm, seed=3, **settings)
    assert len(first) == 3
    assert first == second
    assert same_weights(first.model, second.model)
    assert first != small_run(algorithm, seed=4, **settings)


def test_the_global_generators_neither_move_nor_matter():
    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002

    torch.manual_seed(1)
    python, numpy, pytorch = states()
    first = small_run("ppo", rollouts=2)
    assert states()[:2] == (python, numpy)
    assert torch.equal(states()[2], pytorch)
    torch.manual_seed(2)
    random.seed(2)
    assert small_run("ppo", rollouts=2) == first


def test_building_a_model_asks_no_generator_but_the_cpu_s(monkeypatch):
    """`torch.manual_seed` would seed those of every GPU too."""

    def touched(_):
        raise AssertionError("all generators were seeded")

    before = torch.random.get_rng_state()
    monkeypatch.setattr(torch, "manual_seed", touched)
    make_critic(random_model())
    assert torch.equal(before, torch.random.get_rng_state())


# The model


def test_the_model_passed_in_is_left_as_it_was():
    model = random_model()
    model.get_input_embeddings().weight.requires_grad_(False)
    history = small_run("ppo", model=model, rollouts=2, reward=fixed_noise)
    assert same_weights(model, random_model())
    assert not model.training
    assert not model.get_input_embeddings().weight.requires_grad
    assert all(p.grad is None for p in model.parameters())
    assert history.model is not model
    assert not same_weights(history.model, model)
    assert not history.model.training


def frozen_below(model):
    """All but the last layer, as one may train a pretrained model."""
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("model.layers.1"))
    return model


class LowRank(nn.Module):
    """W + BA with W frozen: what a LoRA library puts in place of a linear layer."""

    def __init__(self, linear: nn.Linear, rank: int = 2):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a = nn.Parameter(torch.randn(rank, linear.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + x @ self.a.T @ self.b.T


def with_lora(model):
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.mlp.up_proj = LowRank(layer.mlp.up_proj)
    return model


@pytest.mark.parametrize(
    ("adapt", "algorithm"),
    [(frozen_below, "grpo"), (frozen_below, "ppo"), (with_lora, "grpo")],
)
def test_frozen_weights_stay_as_they_were(adapt, algorithm):
    model = adapt(random_model())
    before = {name: p.clone() for name, p in model.named_parameters()}
    free = {name for name, p in model.named_parameters() if p.requires_grad}
    settings = {"reward": fixed_noise, "weight_decay": 0.1, "beta": 0.1}
    history = small_run(algorithm, model=model, **settings)
    trained = dict(history.model.named_parameters())
    assert {name for name, p in trained.items() if p.requires_grad} == free
    moved = {name for name, p in trained.items() if not torch.equal(p, before[name])}
    assert moved == free
    assert len(free) < len(before) / 2


def test_a_model_without_a_free_weight_is_refused(no_work):
    with pytest.raises(ValueError, match="no weight of the model needs a gradient"):
        small_run(model=random_model().requires_grad_(False))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("tokens", [18, 48])
def test_the_last_accuracy_is_that_of_the_model_handed_back(tokens, temperature):
    """Measured with the lengths and the temperature that were trained with."""
    sampling = {"max_new_tokens": tokens, "temperature": temperature}
    history = small_run(rollouts=2, eval_problems=64, **sampling)
    assert history.accuracy == evaluate(
        history.model, TOKENIZER, problems=64, **sampling
    )


class Same(Arithmetic):
    """The same problems whatever the seed; keeps the answers."""

    def held_out(self, n, seed=0):
        return super().held_out(n, 0)


def answers(seed, tokens, temperature) -> list[str]:
    seen = []

    class Spy(Same):
        def reward(self, prompts, completions, **columns):
            seen.extend(completions)
            return [0.0] * len(completions)

    sampling = {"max_new_tokens": tokens, "temperature": temperature, "seed": seed}
    evaluate(warm_model(), TOKENIZER, Spy(), problems=64, **sampling)
    return seen


def test_evaluation_keeps_to_the_length():
    assert max(map(len, answers(0, 3, 1.0))) == 3 < max(map(len, answers(0, 40, 1.0)))


def test_evaluation_keeps_to_the_temperature():
    """Near-greedy answers hardly depend on the seed."""
    cold, warm = (
        sum(a == b for a, b in zip(answers(0, 20, t), answers(1, 20, t), strict=True))
        for t in (0.01, 1.0)
    )
    assert warm < 32 < 50 < cold


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.float32),
        ("float64", torch.float64),
    ],
)
def test_the_dtype_of_the_weights(dtype, weights):
    history = small_run(rollouts=1, dtype=dtype)
    assert {p.dtype for p in history.model.parameters()} == {weights}


def test_bfloat16_computes_in_bfloat16():
    """Sampling, scoring and training; there decoding and scoring round differently."""
    for dtype in ("bfloat16", "float32"):
        seen, run = set(), prepared(dtype=dtype)
        run.model.lm_head.register_forward_hook(
            lambda layer, given, logits, seen=seen: seen.add(logits.dtype)
        )
        batch, metrics = collect(run, 0)
        update(run, batch, 0)
        assert seen == {getattr(torch, dtype)}
        assert ("sampling/kl" in metrics) == (dtype == "bfloat16")


def test_the_last_accuracy_of_a_bfloat16_run_is_measured_in_bfloat16(monkeypatch):
    seen, scores = [], trainer.scores

    def spy(*args, **kwargs):
        seen.append(torch.is_autocast_enabled("cpu"))
        return scores(*args, **kwargs)

    monkeypatch.setattr(trainer, "scores", spy)
    small_run(rollouts=1, dtype="bfloat16")
    small_run(rollouts=1)
    assert seen == [True, False]


# Other tasks and rewards


def test_a_reward_of_the_readers_own_is_what_is_learned():
    """Paid for guessing, the policy guesses; accuracy stays the verifier's."""

    def likes_guesses(completions, **_):
        return [2.0 * c.startswith("#") for c in completions]

    history = small_run(rollouts=8, learning_rate=1e-3, reward=likes_guesses, **COURSE)
    assert history["habit/guess"][0] < 0.7
    assert history["habit/guess"][-1] > 0.9
    for reward, share in zip(history["reward"], history["habit/guess"], strict=True):
        assert reward == pytest.approx(2 * share)
    assert history["habit_accuracy/guess"][-1] < 0.5


class Echo:
    """A world of another kind: repeat the digit."""

    habits = ("right",)

    def __init__(self):
        self.drawn = []

    def sample(self, n, seed):
        self.drawn.append(("train", seed))
        rng = random.Random(seed)
        return [{"prompt": f"{rng.randrange(10)}="} for _ in range(n)]

    def held_out(self, n, seed=0):
        self.drawn.append(("held out", seed))
        return [{"prompt": f"{i % 10}="} for i in range(n)]

    def reward(self, prompts, completions):
        pairs = zip(prompts, completions, strict=True)
        return [float(c.startswith(p[0])) for p, c in pairs]

    def habit(self, completion):
        return "right" if completion[:1].isdigit() else "other"


def test_any_object_with_the_five_names_is_a_world():
    task = Echo()
    history = small_run(
        model=random_model(),
        task=task,
        rollouts=15,
        max_new_tokens=2,
        learning_rate=3e-3,
        eval_problems=40,
        **COURSE,
    )
    assert history["reward"][0] < 0.1
    assert sum(history["reward"][-3:]) / 3 > 0.3
    assert history["habit/right"][0] < 0.6 < 0.8 < history["habit/right"][-1]
    assert history.accuracy == evaluate(
        history.model, TOKENIZER, task, problems=40, max_new_tokens=2
    )


# Staleness


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_policy_that_does_not_move_is_reported(algorithm):
    with pytest.raises(StalenessError, match="after 2 rollouts with K = 2") as caught:
        small_run(algorithm, rollouts=2, learning_rate=1e-12)
    history = caught.value.history
    assert len(history) == 2 and history["accuracy"][-1] >= 0
    assert largest_difference(history.model, warm_model()) < 1e-9


def test_it_is_reported_after_five_rollouts_and_not_at_the_end():
    with pytest.raises(StalenessError, match="after 5 rollouts"):
        small_run(rollouts=1000, learning_rate=1e-12)


def test_equal_rewards_are_reported_too():
    with pytest.raises(StalenessError, match="Check the rewards"):
        small_run(rollouts=2, reward=always_one)


def test_one_update_is_refused_unless_asked_for():
    with pytest.raises(ValueError, match="allow_on_policy=True"):
        small_run(minibatches=1)
    history = small_run(minibatches=1, rollouts=2, allow_on_policy=True)
    assert max(history["ratio/max_deviation"]) < ROUNDING
    assert max(map(abs, history["loss"])) < ROUNDING  # ratio 1, centred advantages
    assert min(history["grad_norm"]) > 0.01


# What is recorded


def test_history_counts_rollouts_tokens_and_evaluations():
    history = small_run(rollouts=5, eval_every=2)
    assert history["step"] == [0, 1, 2, 3, 4]
    measured = [row["accuracy"] is not None for row in history.rows]
    assert measured == [False, True, False, True, True]
    tokens = history["num_tokens"]
    lengths = [16 * mean for mean in history["completions/mean_length"]]
    grown = [b - a for a, b in zip([0, *tokens], tokens, strict=False)]
    prompts = [more - own for more, own in zip(grown, lengths, strict=True)]
    assert all(16 * 4 <= n <= 16 * 10 for n in prompts)
    assert all(seconds > 0 for seconds in history["step_time"])


# Held-out problems


def test_evaluate_takes_held_out_problems_alone():
    task = Echo()
    for seed in (0, 7):
        evaluate(
            random_model(), TOKENIZER, task, problems=9, max_new_tokens=2, seed=seed
        )
    assert task.drawn == [("held out", 0), ("held out", 7)]


def test_the_seed_of_evaluate_decides_the_answers_too():
    answers = []

    class Spy(Echo):
        def reward(self, prompts, completions, **columns):
            answers.append(completions)
            return super().reward(prompts, completions, **columns)

    for seed in (0, 0, 7):
        evaluate(random_model(), TOKENIZER, Spy(), problems=9, seed=seed)
    assert answers[0] == answers[1] != answers[2]


def test_training_never_sees_a_held_out_problem():
    """The hash of the prompt divides the two worlds."""
    trained, measured = [], []

    class Spy(Arithmetic):
        def reward(self, prompts, completions, **columns):
            measured.append(prompts)
            return Arithmetic.reward(prompts, completions, **columns)

    def reward(prompts, completions, **_):
        trained.extend(prompts)
        return fixed_noise(completions)

    small_run(
        rollouts=3, task=Spy(), reward=reward, prompts_per_rollout=32, eval_problems=50
    )
    assert len(trained) == 3 * 32 * 4
    assert all(zlib.crc32(p.encode()) % 8 != 0 for p in trained)
    *_, last = measured
    assert len(last) == 50
    assert all(zlib.crc32(p.encode()) % 8 == 0 for p in last)


def test_evaluation_does_not_depend_on_the_run():
    """Each evaluation meets the same problems; another seed, others."""

    def accuracy(seed=0):
        return evaluate(
            warm_model(), TOKENIZER, problems=64, max_new_tokens=20, seed=seed
        )

    assert accuracy() == accuracy()
    assert len({accuracy(seed) for seed in range(4)}) > 1


# What is refused


@pytest.fixture
def no_work(monkeypatch):
    """Sampling, warm start or a step of training would be noticed."""

    def work(*_, **__):
        raise AssertionError("work was done")

    for name in ("warm_start", "scores"):
        monkeypatch.setattr(trainer, name, work)
    monkeypatch.setattr(collecting, "sample", work)


def tokenizer_with_more_tokens():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<extra>"])
    return tokenizer


REFUSED = {
    "unknown method": ({"algorithm": "grppo"}, ValueError, "did you mean 'grpo'"),
    "one response": ({"group_size": 1}, ValueError, "group_size must be ≥ 2"),
    "one response, dynamic sampling": (
        {"algorithm": "ppo", "group_size": 1, "dynamic_sampling": True},
        ValueError,
        "dynamic_sampling keeps groups whose rewards differ",
    ),
    "one update": ({"minibatches": 1}, ValueError, "one update per rollout"),
    "unknown hyperparameter": (
        {"hyperparameters": {"epsilonn": 0.2}},
        TypeError,
        "no setting 'epsilonn', did you mean 'epsilon'",
    ),
    "another method's": ({"hyperparameters": {"tau_pos": 1.0}}, TypeError, "tau_pos"),
    "no room": (
        {"hyperparameters": {"epsilon": 0.0}},
        ValueError,
        r"epsilon must be a number in \(0, 1\], got 0.0",
    ),
    "an argument of the loss": (
        {"hyperparameters": {"weight": 1}},
        TypeError,
        "no setting 'weight'",
    ),
    "a setting of training": (
        {"hyperparameters": {"normaliser": "token_mean"}},
        TypeError,
        "no setting 'normaliser'",
    ),
    "infinite temperature": (
        {"algorithm": "sapo", "hyperparameters": {"tau_neg": float("inf")}},
        ValueError,
        "tau_neg must be a finite number > 0",
    ),
    "shift without a ratio": (
        {"algorithm": "reinforce", "router_shift": True},
        ValueError,
        "reinforce has none without correct=True",
    ),
    "a bound below zero that nothing reads": (
        {"hyperparameters": {"epsilon": -1, "epsilon_low": 0.2, "epsilon_high": 0.2}},
        ValueError,
        "epsilon must be .*, got -1",
    ),
    "unknown device": ({"device": "gpu"}, ValueError, "unknown device 'gpu'"),
    "model alone": ({"tokenizer": None}, ValueError, "model and tokenizer together"),
    "too few positions": ({"max_new_tokens": 125}, ValueError, "128 positions"),
    "resume from nowhere": ({"resume": True}, ValueError, "needs a checkpoint_dir"),
    "overwrite nowhere": ({"overwrite": True}, ValueError, "needs a checkpoint_dir"),
    "no algorithm": ({"algorithm": None}, ValueError, "algorithm must be .* got None"),
    "no task": ({"task": object()}, TypeError, "lacks sample, held_out"),
    "no reward": ({"reward": 1.0}, ValueError, r"reward must be a function .*got 1.0"),
    "rows of another kind": (
        {"task": type("Rows", (Arithmetic,), {"sample": lambda *_: ["3+9="]})()},
        ValueError,
        "task.sample must return a list of dictionaries",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_before_any_work(case, no_work):
    change, error, message = REFUSED[case]
    change = {"algorithm": "grpo", "tokenizer": TOKENIZER, **change}
    settings = {k: change.pop(k) for k in list(change) if hasattr(SMALL, k)}
    config = replace(SMALL, **settings)
    with pytest.raises(error, match=message):
        train(config=config, model=random_model(), progress=False, **change)


def test_a_config_of_another_kind_is_refused(no_work):
    with pytest.raises(ValueError, match=r"config must be a TrainConfig .*got \{'see"):
        train("grpo", config={"seed": 1}, progress=False)


def test_a_wrong_config_is_refused_before_the_warm_start(no_work):
    with pytest.raises(ValueError, match="one update per rollout"):
        train("grpo", config=replace(SMALL, minibatches=1), progress=False)


def test_an_unwritable_folder_is_refused_before_the_warm_start(no_work, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot write checkpoints"):
        train("grpo", checkpoint_dir=str(tmp_path / "file" / "x"), progress=False)


def test_a_checkpoint_is_kept_or_replaced(no_work, tmp_path):
    both = {"resume": True, "overwrite": True, "checkpoint_dir": tmp_path}
    with pytest.raises(ValueError, match="choose one"):
        train("grpo", progress=False, **both)


def test_a_tokenizer_of_another_model_is_refused(no_work):
    with pytest.raises(ValueError, match="the tokenizer has 19 tokens"):
        train("grpo", model=random_model(), tokenizer=tokenizer_with_more_tokens())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_refused_before_any_work(no_work):
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        train("grpo", config=replace(SMALL, device="cuda"), progress=False)


# Learning


def test_grpo_learns():
    """15 rollouts take the warm start from a third right to nearly all."""
    config = TrainConfig(rollouts=15, seed=0)
    history = train(
        "grpo",
        config=config,
        model=warm_model(),
        tokenizer=TOKENIZER,
        progress=False,
    )
    assert history["reward"][0] < 0.5
    assert history.accuracy >= 0.85
    assert history["habit/careful"][-1] > 0.8
    assert history["habit/careful"][0] < 0.5


def test_the_defaults_are_the_warm_start_and_the_arithmetic_world():
    config = replace(SMALL, rollouts=1)
    by_default = train("grpo", config=config, progress=False)
    assert by_default == small_run(rollouts=1, task=Arithmetic())


def test_an_algorithm_may_be_given_itself():
    assert small_run(ALGORITHMS["grpo"], rollouts=1) == small_run(rollouts=1)


def test_a_run_off_the_main_thread_is_the_same_run():
    """There Ctrl-C cannot be caught, and nothing else differs."""
    found = []
    thread = threading.Thread(target=lambda: found.append(small_run(rollouts=2)))
    thread.start()
    thread.join()
    assert found == [small_run(rollouts=2)]


def test_dropout_does_not_act_in_training():
    """GPT-2 comes with dropout 0.1: two runs, and sampler and scorer, agree."""
    settings = {"minibatches": 1, "allow_on_policy": True, "reward": fixed_noise}
    first = small_run(model=gpt2(), **settings)
    assert first == small_run(model=gpt2(), **settings)
    assert max(first["ratio/max_deviation"]) < 1e-4
