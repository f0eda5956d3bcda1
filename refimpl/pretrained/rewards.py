"""Several reward functions as one."""

import math
from collections.abc import Mapping

from refimpl.checkpoint import identity
from refimpl.rewards import scored
from refimpl.validation import UserError, checked


@checked
class Sum:
    """Several reward functions as one: Σ weight · component.

        Sum({"correct": task.reward, "format": in_a_box}, weights=(1.0, 0.2))

    A history then has the columns `rewards/correct/mean` and `rewards/format/mean`, the
    means of the components without weights. By default every weight is 1. A component
    that returns None for an answer counts neither in this answer's sum nor in the
    component's mean.
    """

    components: Mapping
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        names = [*self.components]
        weights = [1.0] * len(names) if self.weights is None else self.weights
        if not names or len(weights) != len(names):
            raise UserError(
                f"a Sum needs a component, and a weight for each; it has {names} and "
                f"{self.weights}"
            )
        object.__setattr__(self, "components", dict(self.components))
        object.__setattr__(self, "weights", tuple(map(float, weights)))

    def __repr__(self) -> str:
        """Return the same text in every process, because a resumed run compares it."""
        parts = zip(self.components.items(), self.weights)
        return f"Sum({' + '.join(f'{w:g}·{n}={identity(f)}' for (n, f), w in parts)})"

    def __call__(self, prompts, completions, **columns) -> list[float]:
        return scored(self, prompts, completions, columns)[0]

    def total(self, parts: dict[str, list[float]]) -> list[float]:
        """Compute Σ weight · component per answer; a NaN counts as 0."""
        rows = [*zip(*parts.values(), strict=True)]
        for place, row in enumerate(rows):
            if all(map(math.isnan, row)):
                raise UserError(
                    f"every component returned None for completion {place}: one of "
                    f"{', '.join(parts)} must apply to each answer"
                )
        pairs = [[*zip(self.weights, row)] for row in rows]
        return [sum(w * v for w, v in row if not math.isnan(v)) for row in pairs]
