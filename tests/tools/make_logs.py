"""Make the logs that `read-log` is tested with: `python -m tests.tools.make_logs`.

Ten faults are put into our own trainer, one at a time, and healthy runs stand beside
them, each a CSV in `tests/evidence/logs`; `--trl` puts five of them into TRL's trainer
(tests/bridges/requirements.txt), whose `trainer_state.json` is kept. Another processor
rounds differently, so the files are stored and not made again by a test. The limits in
`symptoms.toml` were set with seed 0 (`--seed 0 --folder …`); what is stored has seed 2,
which they never saw.
"""

import contextlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import tyro

from refimpl import TrainConfig, train
from refimpl.hooks import StalenessError
from refimpl.logprobs import log_probs
from refimpl.rollout import Batch
from refimpl.tasks import Arithmetic

FOLDER = Path(__file__).parents[1] / "evidence" / "logs"
SHORT = {"rollouts": 16, "eval_every": 4, "eval_problems": 128}
COLUMNS = (
    "reward",
    "frac",
    "entropy",
    "completions",
    "length",
    "ratio",
    "clip",
    "loss",
)
COLUMNS += ("grad", "log_ratio", "sampling", "accuracy", "step", "value")
RIGHT = Arithmetic().reward


def worthless(completions, **columns):
    """The verifier rejects every format."""
    return [0.0 for _ in completions]


def too_hard(prompts, completions, *, terms, **columns):
    """Three prompts of four can never be solved."""
    paid = RIGHT(prompts, completions, **columns)
    return [reward * (count == 5) for reward, count in zip(paid, terms)]


def long(completions, **columns):
    """The hack: length is paid, right or wrong."""
    return [len(text) / 48 for text in completions]


def hotter(model, rollout, temperature, **keywords):
    """Log-probs are read at another temperature than the sampler's."""
    return log_probs(model, rollout, 1.5 * temperature, **keywords)


def negated(batch: Batch) -> Batch:
    """The advantages have the wrong sign."""
    return replace(batch, advantages=-batch.advantages)


def without_end(batch: Batch) -> Batch:
    """The end token is outside the mask."""
    mask = batch.mask.clone()
    ended = ~batch.rollout.truncated
    mask[ended, batch.rollout.span[ended].long() - 1] = 0
    return replace(batch, mask=mask)


FAULTS: dict[str, dict] = {
    "rate": {"learning_rate": 6e-3},  # 30 times the default
    "verifier": {"reward": worthless},
    "dead": {"reward": too_hard},
    "end": {"batch": without_end},
    "temperature": {"log_probs": hotter},
    "nucleus": {"top_p": 0.8},
    "hack": {"reward": long},
    "stale": {"sampler_delay": 4, "learning_rate": 6e-4},
    "sign": {"batch": negated},
    "short": {"max_new_tokens": 12},
}
HEALTHY: dict[str, dict] = {
    name: {"algorithm": name}
    for name in ("grpo", "ppo", "dr_grpo", "dapo", "cispo", "sapo")
} | {"bfloat16": {"rollout_dtype": "bfloat16"}}


@contextlib.contextmanager
def changed(batch: Callable | None) -> Iterator[None]:
    """While it lasts, every batch is what `batch` makes of it."""
    from refimpl.loop import collect

    def wrong(run, step):
        made, described = collect(run, step)
        return batch(made), described

    with patch("refimpl.loop.collect", wrong) if batch else contextlib.nullcontext():
        yield


def made(seed: int, algorithm="grpo", batch=None, reward=None, **settings):
    """A short run."""
    given = {"log_probs": settings.pop("log_probs", log_probs), "reward": reward}
    config = TrainConfig(seed=seed, **{**SHORT, **settings})
    with changed(batch), warnings.catch_warnings(action="ignore"):
        try:
            return train(algorithm, config=config, progress=False, **given)
        except StalenessError as error:  # as it should: nothing moves
            return error.history


TRL = {
    "per_device_train_batch_size": 16,
    "num_generations": 8,
    "max_completion_length": 48,
    "learning_rate": 2e-4,
    "lr_scheduler_type": "constant",
    "max_steps": 64,
    "logging_steps": 4,  # a row for each generation
}
IN_TRL: dict[str, dict] = {
    "healthy": {},
    "rate": {"learning_rate": 6e-3},
    "verifier": {"reward_funcs": worthless},
    "hack": {"reward_funcs": long},
    "sign": {"negated": True},
    "short": {"max_completion_length": 12},
}


def made_by_trl(seed: int, negated=False, reward_funcs=RIGHT, **settings) -> dict:
    """What TRL's own trainer keeps of a run."""
    from trl import GRPOTrainer

    from tests.bridges.bridge_world import trainer_of

    class Negated(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            wrong = {"advantages": -inputs["advantages"]}
            return super()._compute_loss(model, inputs | wrong)

    kind = Negated if negated else GRPOTrainer
    with tempfile.TemporaryDirectory() as folder:
        given = TRL | settings | {"seed": seed}
        trainer = trainer_of(folder, given, kind=kind, reward_funcs=reward_funcs)
        trainer.train()
        trainer.state.save_to_json(f"{folder}/state.json")
        return json.loads(Path(folder, "state.json").read_text())


def rounded(number):
    """Four digits are enough, and leave the file small."""
    return float(f"{number:.4g}") if isinstance(number, float) else number


def main(
    seed: int = 2, folder: Path = FOLDER, only: tuple[str, ...] = (), trl: bool = False
) -> None:
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True, parents=True)
    for name, settings in (IN_TRL if trl else {**FAULTS, **HEALTHY}).items():
        if only and name not in only:
            continue
        if trl:
            state = made_by_trl(seed, **settings)
            rows = [{k: rounded(x) for k, x in r.items()} for r in state["log_history"]]
            text = json.dumps({**state, "log_history": rows})
            (folder / f"trl_{name}.json").write_text(text, encoding="utf-8")
        else:
            history = made(seed, **settings)
            history.rows = [
                {k: rounded(x) for k, x in row.items() if k.startswith(COLUMNS)}
                for row in history.rows
            ]
            history.save(folder / f"{name}.csv")
        print(name, flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
