"""Hooks: what happens after every rollout.

A hook is called as f(run, step). It may read everything that `run` holds (its `batch`,
all responses in `run.drawn`, `run.history.rows[-1]`), and add columns to that row.

A hook that also needs a beginning or an end has a context manager `around(run)`. It is
entered before the first rollout, and left after the last one, or with the error that
ends the run. `Checkpoint` loads a saved state there, and `Bar` closes its line.

    class Clock:
        @contextlib.contextmanager
        def around(self, run):
            self.began = time.time()
            yield

        def __call__(self, run, step):
            run.history.rows[-1]["seconds"] = time.time() - self.began
"""

import contextlib
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tqdm.auto import tqdm

from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.history import StalenessError, joined
from refimpl.models import precision
from refimpl.responses import Responses
from refimpl.run import Run
from refimpl.tasks import TaskWarning
from refimpl.validation import Count, guarded


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


class Samples:
    """Put a few responses into the history every `every` rollouts.

    Also those of a rollout in which the run ends, for they may say why. Prints them if
    `show`.
    """

    @guarded
    def __init__(self, every: Count = 1, show: bool = False):
        self.every, self.show = every, show
        self.seen: Any = None  # responses that have been kept

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """Keep the responses of a rollout that was not completed."""
        try:
            yield
        except BaseException as error:
            run.drawn = getattr(error, "drawn", run.drawn)
            self(run, len(run.history))
            raise

    def __call__(self, run: Run, step: int) -> None:
        drawn, seen, self.seen = run.drawn, self.seen, run.drawn
        if drawn is seen or step % self.every:
            return
        samples = chosen(step, drawn)
        run.history.samples += samples
        if self.show:
            show(samples, getattr(run.tokenizer, "all_special_tokens", ()))


HEAD, TAIL = 140, 60
"""Printed characters of a long completion; the history holds all of it."""


def chosen(step: int, drawn: Responses) -> list[dict]:
    """Return the first response to each of the first four prompts, as dictionaries.

    The best or worst responses would show extremes instead of typical behaviour. If
    there are fewer prompts, second responses follow.
    """
    rewards, size = drawn.rewards.tolist(), drawn.group_size
    order = sorted(range(len(rewards)), key=lambda i: (i % size, i // size))
    names, texts = ("step", "prompt", "completion", "reward"), drawn.texts
    rows = [(step, str(drawn.prompts[i]), texts[i], rewards[i]) for i in order[:4]]
    return [dict(zip(names, row)) for row in rows]


CLOSED = contextlib.suppress(OSError)
"""A pipe or a terminal that is closed does not end a run."""


def line(sample: dict, special: Collection[str] = ()) -> str:
    """Format a sample as one line of printable characters.

    Shows the last line of the prompt that has text. A chat template ends with the
    header of the answer, which begins with one of the `special` tokens and is skipped.
    Texts are printed as Python literals, so that they cannot break the line, move the
    cursor, change colours or reverse the direction of writing.
    """
    lines = [text for text in sample["prompt"].splitlines() if text.strip()]
    spoken = [text for text in lines if not text.strip().startswith(tuple(special))]
    question = (spoken or lines or [sample["prompt"]])[-1]
    for token in special:
        question = question.replace(token, "")
    completion = sample["completion"]
    if len(completion) > HEAD + TAIL:
        completion = f"{completion[:HEAD]} … {completion[-TAIL:]}"
    head = f"step {sample['step']}  reward {sample['reward']:.2f}"
    return f"{head}  {question!r} → {completion!r}"


def show(samples: Sequence[dict], special: Collection[str] = ()) -> None:
    """Print samples above the progress bar; escape what the terminal cannot display."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with CLOSED:
        for sample in samples:
            text = line(sample, special).encode(encoding, "backslashreplace")
            tqdm.write(text.decode(encoding))


class Bar:
    """A progress bar with the last rollout's mean reward; gone after the run."""

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """Open the bar, and close it at the end."""
        total, done, name = run.config.rollouts, len(run.history), run.algorithm.name
        self.bar = tqdm(disable=True)
        with CLOSED:
            self.bar = tqdm(total=total, initial=done, desc=name, leave=False)
        try:
            yield
        finally:
            with CLOSED:
                self.bar.close()

    def __call__(self, run: Run, step: int) -> None:
        with CLOSED:
            reward = run.history.rows[-1]["reward"]
            self.bar.set_postfix(reward=f"{reward:.2f}", refresh=False)
            self.bar.update()


def stop_if_asked(run: Run, step: int) -> None:
    """Raise `KeyboardInterrupt` if a signal has asked the run to stop.

    After the last rollout only Ctrl-C does: a loop over seeds must stop as well.
    """
    left = step + 1 < run.config.rollouts
    if run.stop_signal and (left or run.stop_signal == signal.SIGINT):
        raise KeyboardInterrupt


def warn_if_never_right(run: Run, step: int) -> None:
    """Warn, with two samples, if the first rollout has nothing to learn from."""
    drawn, rewards = run.drawn, run.drawn.rewards
    differ = rewards.min() < rewards.max() or drawn.alive.any()
    if step > 0 or drawn.correct.max() > 0 or differ:
        return
    warnings.warn(
        "no answer of the first rollout is right, and all have the same reward "
        f"({rewards[0].item():g}): there is nothing to learn from. Two of them: "
        f"{drawn.texts[0]!r:.100}, {drawn.texts[-1]!r:.100}. If they are nearly right, "
        "look at how the answer is extracted and at max_new_tokens; else take easier "
        "problems, a larger group_size, or another prompt",
        TaskWarning,
        stacklevel=2,
    )


def check_staleness(run: Run, step: int) -> None:
    """Raise `StalenessError` if K > 1 and every |ratio − 1| is rounding noise.

    Also if all responses were cut off and filtered out. The test runs after the fifth
    rollout and after the last.
    """
    config, history, k = run.config, run.history, run.config.updates_per_rollout
    if step + 1 not in (5, config.rollouts):
        return
    if config.overlong_filtering and min(history["completions/clipped_ratio"]) == 1:
        raise StalenessError(
            f"every response of {len(history)} rollouts was cut off at max_new_tokens "
            f"= {config.max_new_tokens}, and overlong_filtering leaves those out: "
            "nothing was learned. Raise max_new_tokens, or switch the filter off"
        )
    noise = 1e-2 if config.dtype == "bfloat16" else 1e-4
    largest = max(history["ratio/max_deviation"])
    moving = step >= config.critic_warmup  # before, only the critic learns
    if moving and k > 1 and largest < noise:
        raise StalenessError(
            f"after {len(history)} rollouts with K = {k} updates each, the largest "
            f"|ratio − 1| is {largest:.1e}: the policy does not move, or old log-probs "
            "are taken from the policy being trained. Check the rewards and the "
            "learning rate (chapter 11 goes from symptoms to causes)"
        )
