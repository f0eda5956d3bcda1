"""The sampler's reader: rows that leave, rows that stay; nothing is deprecated."""

from refimpl import log_probs, sample, sampling
from refimpl.sampling import Decoder
from tests.worlds import TOKENIZER, random_model

PROMPTS = ["1+2+3+4+5=", "1+2+3+4+=", "1+2+3+4+67+8="]  # eight alike, then not


def drawn(model, reader: type[Decoder], monkeypatch, **settings):
    """Forty responses, hot, so that rows leave at different times."""
    monkeypatch.setattr(sampling, "decoder", lambda _: reader)
    settings = {"group_size": 40, "temperature": 3.0, "max_new_tokens": 24} | settings
    return sample(model, TOKENIZER, PROMPTS, **settings)


def mixed(reader: type[Decoder]) -> type[Decoder]:
    """`reader`, but when rows leave the others change places."""

    class Mixed(reader):
        def keep(self, rows):
            super().keep(rows.flip(0))

    return Mixed


def test_a_row_that_is_mixed_up_is_noticed(monkeypatch):
    model = random_model()
    rollout = drawn(model, mixed(Decoder), monkeypatch)
    assert (log_probs(model, rollout, 3.0)[0] - rollout.logp).abs().max() > 0.01
