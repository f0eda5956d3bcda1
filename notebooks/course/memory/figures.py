"""Figures of chapter 13b: where the bytes of a model are."""

import textwrap

from course.kit import explorer, stakes
from course.kit.memory import memory
from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE

ROOM = {8: "a small laptop", 24: "a card for games", 80: "one large card"}
"""GB of memory, and where one has them."""


def fits(size: float) -> str:
    """A number of GB, and the smallest of `ROOM` into which it goes."""
    words = f"{size / 1000:.0f} TB" if size >= 1000 else f"{size:.2f} GB"
    room = next((limit for limit in ROOM if size <= limit), None)
    if room is None:
        return f"{words} in all: more than the 80 GB of one large card"
    return f"{words} in all: fits into the {room} GB of {ROOM[room]}"


def memory_explorer(config) -> explorer.Explorer:
    """Where the bytes are, for the reader's prompts, answers and way to train."""
    parts = [name for name in memory(config) if name != "peak"]
    ratios = {"width_ratios": (3, 4)}
    figure, (left, right) = draw.panel_grid(2, (8, 3.8), sharex=True, **ratios)
    bars = left.barh(range(len(parts)), 1.0, color=FREE[1])
    draw.row_labels(left, [textwrap.fill(part, 17) for part in parts])
    left.set(xscale="log", xlim=(0.01, 1e5), title="each part")
    draw.plain_ticks(left.xaxis, (0.01, 1, 100, 10_000))
    look = {"height": 0.4, "color": FREE[3], "edgecolor": FREE[2]}
    whole, *rooms = right.barh(range(4), [1, *ROOM], **look)
    whole.set_color(FREE[1])
    named = ("all together", *(f"{room}: {limit} GB" for limit, room in ROOM.items()))
    for row, name in enumerate(named):
        right.text(0.012, row - 0.39, name, va="center")
    right.set(ylim=(3.4, -0.7), yticks=(), title="their sum; filled: it fits")
    for axis in (left, right):
        axis.set_xlabel("GB (10⁹ bytes), log scale")
        axis.grid(axis="y", visible=False)

    def move(r, prompt_length, max_new_tokens, group_size, micro_batch_size):
        sizes = memory(
            config,
            r=None if r == "full" else int(r),
            prompt_length=prompt_length,
            max_new_tokens=max_new_tokens,
            group_size=group_size,
            micro_batch_size=micro_batch_size,
        )
        for bar, part in zip(bars, parts):
            bar.set_width(max(sizes[part] / 1e9, 1e-3))
        total = sizes["peak"] / 1e9
        whole.set_width(total)
        for limit, room in zip(ROOM, rooms):
            room.set_fill(total <= limit)
        return [*bars, whole, *rooms, draw.say(figure, fits(total))]

    powers = [2**n for n in range(1, 13)]
    trained = [("all weights", "full")]
    trained += [(f"a LoRA of rank {r}", str(r)) for r in (1, 4, 16, 64)]
    return explorer.Explorer(
        figure,
        [move],
        {
            "r": explorer.choice("trained", trained, "full"),
            "prompt_length": explorer.stops("prompt (tokens)", powers[3:], 32),
            "max_new_tokens": explorer.stops("answer (tokens)", powers[1:], 16),
            "group_size": explorer.stops("answers per prompt G", powers[:7], 8),
            "micro_batch_size": explorer.stops("micro-batch", powers[:8], 8),
        },
        {
            "small: a LoRA": {"r": "4", "max_new_tokens": 16, "micro_batch_size": 2},
            "long answers": {"max_new_tokens": 2048, "micro_batch_size": 8},
        },
        stakes="These bytes are calculated. How a run ends does not depend on the "
        "micro-batch: it changes memory, not results.",
        prediction=stakes.Prediction(
            "A LoRA in place of all weights: what nearly vanishes?",
            ("the weights", "the state of Adam", "the activations"),
            "the state of Adam",
            "Adam keeps two numbers per trained weight, and a LoRA trains few.",
        ),
        name="13b_memory",
    )
