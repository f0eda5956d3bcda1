"""Solutions to the exercises of chapter 04."""

GAIN = "twice as much"
"""(2/π)(arcsin √0.11 − arcsin √0.01) = 0.15, and 0.06 for 0.45 to 0.55: 2.4 times."""

TOKEN_MEAN = ["shorter", "longer"]
"""The divisor holds the response's own length, so a token of a long response is divided
by more. The pull is GRPO's, weaker; in a large batch one length hardly matters, and it
is then near none."""

BUG = 2
"""A response ends with EOS, which pads as well: this mask takes the token out of the
loss that ends the response. What is left are tokens that go on. Right responses make
them likelier and never end; wrong ones make them less likely and shrink. Keep the first
EOS in the mask."""


def token_weights(lengths: list[int], limit: int) -> tuple[list[float], list[float]]:
    """GRPO: 1/(B|o_i|), its own length. Dr. GRPO: 1/(B·L_max), the same for all."""
    rows = len(lengths)
    return [1 / (rows * n) for n in lengths], [1 / (rows * limit) for _ in lengths]
