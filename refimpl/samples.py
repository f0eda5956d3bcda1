"""Samples: what a person reads along a run."""

import contextlib
import sys
from collections.abc import Collection, Sequence

from tqdm.auto import tqdm

KEPT = 4
"""The number of samples that are kept per rollout."""
HEAD, TAIL = 140, 60
"""Characters of a long completion that are printed; all of it is kept."""


def chosen(step: int, prompts, completions, rewards, group_size: int) -> list[dict]:
    """The first response to each of the first four prompts, as plain dictionaries.

    Not the best or the worst: these would show how far a policy can stray, not how it
    mostly behaves. Where there are fewer prompts, second responses follow.
    """
    order = sorted(range(len(prompts)), key=lambda i: (i % group_size, i // group_size))
    names = ("step", "prompt", "completion", "reward")
    return [
        dict(zip(names, (step, prompts[i], completions[i], float(rewards[i]))))
        for i in order[:KEPT]
    ]


def line(sample: dict, special: Collection[str] = ()) -> str:
    """A sample as one line of printable characters, its prompt as the last line of it
    that says something: a chat template ends with the header of the answer to come,
    which begins with one of the `special` tokens.

    The texts are a model's: as Python literals they can neither break the line nor
    move the cursor, change colours or reverse the direction of writing.
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
    """Print samples above the progress bar, whatever the terminal can display."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):  # nobody reads on, and the run need not end
        for sample in samples:
            text = line(sample, special).encode(encoding, "backslashreplace")
            tqdm.write(text.decode(encoding))
