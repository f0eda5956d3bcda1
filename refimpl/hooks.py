"""Hooks: functions f(run, step) that `train` calls after every rollout."""

import contextlib
from collections.abc import Callable, Iterator

from tqdm.auto import tqdm

from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.history import History, joined
from refimpl.models import precision
from refimpl.options import Run


class StalenessError(RuntimeError):
    """The ratio never left 1, so no clip or gate acted; carries the `history`."""

    history: History


def evaluate(run: Run, step: int) -> None:
    """Measure the held-out accuracy every `eval_every` rollouts and after the last."""
    config, several = run.config, run.config.eval_samples > 1
    none = dict.fromkeys(["accuracy", "accuracy/pass"] if several else ["accuracy"])
    row = run.history.rows[-1] = joined(run.history.rows[-1], none)
    if (step + 1) % config.eval_every and not run.last(step):
        return
    with precision(run.model, config.dtype):
        answers = scores(
            run.model,
            run.tokenizer,
            run.task,
            problems=config.eval_problems,
            samples=config.eval_samples,
            **config.sampling,
        )
    row["accuracy"] = mean_at(answers)
    if several:
        row["accuracy/pass"] = pass_at(answers, config.eval_samples)


@contextlib.contextmanager
def progress_bar(run: Run) -> Iterator[Callable[[Run, int], None]]:
    """Show a progress bar with the last rollout's mean reward.

    Yields the hook that updates it. A closed pipe or terminal does not end the run.
    """
    total, done = run.config.rollouts, len(run.history)
    nobody_reads = contextlib.suppress(OSError)
    shown = tqdm(disable=True)
    with nobody_reads:
        name = run.algorithm.name
        shown = tqdm(total=total, initial=done, desc=name, disable=not run.progress)

    def show(run: Run, step: int) -> None:
        reward = run.history.rows[-1]["reward"]
        with nobody_reads:
            shown.set_postfix(reward=f"{reward:.2f}", refresh=False)
            shown.update()

    try:
        yield show
    finally:
        with nobody_reads:
            shown.close()


def check_staleness(run: Run, step: int) -> None:
    """Raise `StalenessError` if K > 1 and every |ratio − 1| is rounding noise.

    Also if all responses were cut off and filtered out. The test runs after the fifth
    rollout and after the last.
    """
    if step + 1 not in (5, run.config.rollouts):
        return
    noise = 1e-2 if run.config.dtype == "bfloat16" else 1e-4
    largest = max(run.history["ratio/max_deviation"])
    cut = min(run.history["completions/clipped_ratio"])
    if run.config.overlong_filtering and cut == 1:
        raise StalenessError(
            f"every response of {len(run.history)} rollouts was cut off at "
            f"max_new_tokens = {run.config.max_new_tokens}, and overlong_filtering "
            "leaves those out: nothing was learned. Raise max_new_tokens, or switch "
            "the filter off"
        )
    if step < run.config.critic_warmup:  # the policy has not moved yet
        return
    if run.config.updates_per_rollout > 1 and largest < noise:
        raise StalenessError(
            f"after {len(run.history)} rollouts with K = "
            f"{run.config.updates_per_rollout} updates each, the largest |ratio − 1| "
            f"is {largest:.1e}: the policy does not move, or old log-probs are taken "
            "from the policy being trained. Check the rewards and the learning rate "
            "(chapter 11 goes from symptoms to causes)"
        )
