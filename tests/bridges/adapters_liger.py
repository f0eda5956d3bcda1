"""Liger's loss of log-probs, `LigerFusedLinearGRPOFunction.ppo_loss_fn`."""

from importlib.metadata import version

from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction
from named_as_trl import bias_corrected, losses

FRAMEWORK = f"Liger {version('liger-kernel')}"


def asked(inputs, settings, **given):
    ratio, mask = None, inputs["mask"]
    if cap := settings.get("cap"):
        gap = (inputs["old_logp"] - inputs["rollout_logp"]) * mask
        ratio = gap.exp().clamp(max=cap)
    loss, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        inputs["logp"],
        mask,
        inputs["advantages"],
        mask,
        ref_per_token_logps=inputs["ref_logp"],
        old_per_token_logps=inputs["old_logp"],
        beta=settings.get("beta", 0.0),
        max_completion_length=settings["max_length"],
        vllm_is_ratio=ratio,
        use_bias_correction_kl=bias_corrected(settings),
        **given,
    )
    return loss


grpo, gspo, cispo, sapo, vespo = losses(asked)
dr_grpo = dapo = ppo = grpo


def luspo(inputs, settings):
    if settings.get("cap"):
        raise NotImplementedError("with a weight of each token it counts padding")
    return gspo(inputs, settings)
