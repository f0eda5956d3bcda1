"""A few responses of a rollout, kept and printed: what a person reads along a run."""

import contextlib
import sys
from collections.abc import Collection, Sequence

from tqdm.auto import tqdm

KEPT = 4
"""Of a rollout."""

HEAD, TAIL = 140, 60
"""Characters of a long completion that are printed; all of it is kept."""


def chosen(
    step: int,
    prompts: Sequence[str],
    completions: Sequence[str],
    rewards: Sequence[float],
    group_size: int,
) -> list[dict]:
    """The first response to each of the first four prompts, as plain dictionaries.

    Not the best or the worst: these would show how far a policy can stray, not how it
    mostly behaves. Where there are fewer prompts, second responses follow.
    """
    order = sorted(range(len(prompts)), key=lambda i: (i % group_size, i // group_size))
    return [
        {
            "step": step,
            "prompt": prompts[i],
            "completion": completions[i],
            "reward": float(rewards[i]),
        }
        for i in order[:KEPT]
    ]


def question(prompt: str, special: Collection[str] = ()) -> str:
    """The last line of a prompt that says something.

    A chat template ends with the header of the answer to come, a line that begins with
    one of the `special` tokens.
    """
    lines = [line for line in prompt.splitlines() if line.strip()]
    said = [line for line in lines if not line.strip().startswith(tuple(special))]
    last = (said or lines or [prompt])[-1]
    for token in special:
        last = last.replace(token, "")
    return last


def line(sample: dict, special: Collection[str] = ()) -> str:
    """A sample as one line of printable characters.

    The texts are a model's: as Python literals they can neither break the line nor
    move the cursor, change colours or reverse the direction of writing.
    """
    completion = sample["completion"]
    if len(completion) > HEAD + TAIL:
        completion = f"{completion[:HEAD]} … {completion[-TAIL:]}"
    return (
        f"step {sample['step']}  reward {sample['reward']:.2f}  "
        f"{question(sample['prompt'], special)!r} → {completion!r}"
    )


def show(samples: Sequence[dict], special: Collection[str] = ()) -> None:
    """Print samples above the progress bar, whatever the terminal can display."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):  # nobody reads on, and the run need not end
        for sample in samples:
            text = line(sample, special).encode(encoding, "backslashreplace")
            tqdm.write(text.decode(encoding))
