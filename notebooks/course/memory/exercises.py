"""Exercises of chapter 13b: bytes per weight, small steps, the size of a LoRA."""

from collections.abc import Sequence

from course.kit.exercise import Exercise


def trained_weights(layers: Sequence[tuple[int, int]], r: int) -> int:
    """13b.3: of each layer B has (outputs, r) numbers, and A has (r, inputs)."""
    return sum(r * (outputs + inputs) for outputs, inputs in layers)


EXERCISES = (
    Exercise(
        "13b.1",
        solution=112,
        why="Four numbers of four bytes each are 16 bytes per weight.",
        mistakes={
            "Those are the weights alone. What else has one number per weight?": 28,
            "Those are two numbers per weight, such as the weight and its gradient. "
            "What does Adam remember of each?": 56,
            "Adam keeps two numbers per weight, not one: the mean of the gradients and "
            "that of their squares.": 84,
            "Those are the weights alone, with two bytes to a number. In float32 each "
            "has four.": 14,
            "That is the number of bytes per weight, and there are seven billion of "
            "them.": 16,
        },
    ),
    Exercise(
        "13b.2",
        solution=0.02,
        decimals=3,
        choices=(0.02, 0.021, 0.022),
        why="Near 0.02 the numbers of bfloat16 are 1/8192 = 0.00012 apart. A step of "
        "0.00002 is less than half of that, so each is rounded away.",
        mistakes={
            "That would be right if the steps added up before they are rounded. But "
            "each result is rounded, and then the next step begins there.": 0.022,
            "A step either reaches the next number or it does not, and all hundred "
            "steps begin at the same place.": 0.021,
        },
    ),
    Exercise(
        "13b.3",
        solution=trained_weights,
        cases=(([(576, 576), (192, 576)], 16), ([(1536, 576)], 4), ([(3, 5)], 1)),
        mistakes={
            "Those are the frozen weights. A LoRA trains B and A in place of "
            "them.": lambda layers, r: sum(a * b for a, b in layers),
            "You count BA, which has the shape of W. What is trained are its two "
            "factors.": lambda layers, r: sum(r * a * b for a, b in layers),
            "You count A alone. B is trained as well, and has a row for each output.": {
                "(outputs + inputs)": "inputs"
            },
            "You count B alone. A is trained as well, and has a column for each "
            "input.": {"(outputs + inputs)": "outputs"},
            "You took every layer for a square one. Outputs and inputs may differ in "
            "number.": {"(outputs + inputs)": "2 * inputs"},
            "The frozen weights are not trained.": {
                "r * (outputs + inputs)": "r * (outputs + inputs) + outputs * inputs"
            },
        },
    ),
)
