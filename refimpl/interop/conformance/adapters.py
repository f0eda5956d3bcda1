"""Fill this file in with your framework's losses, and run

    python -m refimpl conformance --against adapters.py

The file is run as code. A function gets `inputs`, tensors in float64, and `settings`,
and returns the loss as a scalar with its graph. Leave out methods that you do not have,
and raise `NotImplementedError` for settings that you do not support: neither counts as
a difference.

    inputs     logp (B, T), with a gradient; old_logp, ref_logp, rollout_logp (B, T);
               advantages (B,); mask (B, T), 1 on response tokens; group (B,); gamma
               (B, T), RSPO's γ. Log-probs in nats
    settings   hyperparameters, all of them, as {'epsilon_low': 0.2, …}; normaliser, of
               refimpl.normalisers; max_length; in some cases kl with beta, cap (of
               TIS), placement (of γ)
"""

FRAMEWORK = "mine 0.1"


def grpo(inputs, settings):
    """The loss of GRPO; one function per algorithm, under its name in refimpl."""
    raise NotImplementedError
