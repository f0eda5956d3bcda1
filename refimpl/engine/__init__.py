"""A small inference engine: what samples from Llamas and Qwens in a third of the time.

Direct      the sums of `transformers` without looking anything up, checking or copying
            between two tokens
Captured    the same on CUDA, a token's launches recorded once in a graph

It comes in through the door `decoding.FASTER`, draws the same samples for the same
seed, and may be taken out: `FASTER.clear()`.
"""

from refimpl.decoding import FASTER, Decoder, full_attention
from refimpl.engine.captured import Captured
from refimpl.engine.direct import Direct
from refimpl.models import Model
from refimpl.moe import is_moe

KNOWN = {"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model", "Qwen3MoeModel"}
"""Pre-norm decoders that differ in biases, norms of q and k, and experts alone."""


def reader(model: Model) -> type[Decoder] | None:
    """The faster reader that computes what this model does, if one does."""
    body = model.get_decoder() if hasattr(model, "get_decoder") else None
    rope = getattr(model.config, "rope_parameters", None) or {}
    known = (
        type(body).__name__ in KNOWN
        and full_attention(model)
        and model.config._attn_implementation == "sdpa"
        and rope.get("rope_type") in ("default", "linear", "llama3", "yarn")
    )
    if not known:
        return None
    return Captured if model.device.type == "cuda" and not is_moe(model) else Direct


FASTER.append(reader)
