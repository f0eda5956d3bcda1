"""The decode step in a CUDA graph: a token costs one launch for all its kernels."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.engine.direct import Direct


class Captured(Direct):
    """A graph reads all columns, for its shapes cannot grow; rows leave when half are
    gone, and another graph is made. Not yet tried on a real GPU."""

    crowd = 0.5
    graph: torch.cuda.CUDAGraph | None = None

    def next(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """The graph's launches, after its inputs were written where it reads them."""
        at, self.end = self.column[self.end : self.end + 1], self.end + 1
        if self.graph is None:
            self.tokens, self.at = tokens.clone(), at.clone()
            self.capture()
        self.tokens.index_copy_(0, self.slot, tokens)
        self.at.copy_(at)
        self.graph.replay()
        return self.logits[self.slot]

    def capture(self) -> None:
        """One step, once as it is, so that libraries set up, and once recorded."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.whole_step()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.whole_step()

    def whole_step(self) -> Float[Tensor, "B V"]:
        """A step of which nothing depends on the host."""
        mask = self.attention & (self.column <= self.at)
        return self.step(self.tokens, self.at, mask)

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows alone, in another graph."""
        super().keep(rows)
        self.graph = None
