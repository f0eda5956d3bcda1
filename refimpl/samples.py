"""Samples of a run's responses, for a person to read."""

import contextlib
import sys
from collections.abc import Collection, Sequence

from tqdm.auto import tqdm

KEPT = 4
"""Samples per rollout."""
HEAD, TAIL = 140, 60
"""Printed characters of a long completion; the history holds all of it."""


def chosen(step: int, prompts, completions, rewards, group_size: int) -> list[dict]:
    """Return the first response to each of the first four prompts, as dictionaries.

    The best or worst responses would show extremes instead of typical behaviour. If
    there are fewer prompts, second responses follow.
    """
    order = sorted(range(len(prompts)), key=lambda i: (i % group_size, i // group_size))
    names = ("step", "prompt", "completion", "reward")
    return [
        dict(zip(names, (step, str(prompts[i]), completions[i], float(rewards[i]))))
        for i in order[:KEPT]
    ]


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
    return (
        f"step {sample['step']}  reward {sample['reward']:.2f}  "
        f"{question!r} → {completion!r}"
    )


def show(samples: Sequence[dict], special: Collection[str] = ()) -> None:
    """Print samples above the progress bar; escape what the terminal cannot display."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):  # a closed pipe need not end the run
        for sample in samples:
            text = line(sample, special).encode(encoding, "backslashreplace")
            tqdm.write(text.decode(encoding))
