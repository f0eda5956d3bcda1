"""Liger's loss of log-probs, `LigerFusedLinearGRPOFunction.ppo_loss_fn`."""

from importlib.metadata import version

from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction

FRAMEWORK = f"Liger {version('liger-kernel')}"
AVERAGED = {"seq_mean_token_mean": "grpo", "token_mean": "dapo", "constant": "dr_grpo"}
KL = {"k3": False, "unbiased_k3": True}


def _asked(inputs, settings, **own):
    if settings.get("placement"):
        raise NotImplementedError("Liger has no router shift")
    kl, cap, mask = settings.get("kl"), settings.get("cap"), inputs["mask"]
    if kl and kl not in KL:
        raise NotImplementedError("Liger's KL is k3")
    ratio = None
    if cap:
        ratio = (inputs["old_logp"] - inputs["rollout_logp"]).exp().clamp(max=cap)
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
        use_bias_correction_kl=KL.get(kl, False),
        **own,
    )
    return loss


def _clipped(inputs, settings, **own):
    given, averaged = settings["hyperparameters"], settings["normaliser"]
    if averaged not in AVERAGED or given.get("dual_clip"):
        raise NotImplementedError(f"Liger has no {averaged}, and no dual clip")
    return _asked(
        inputs,
        settings,
        loss_type=AVERAGED[averaged],
        epsilon_low=given["epsilon_low"],
        epsilon_high=given["epsilon_high"],
        **own,
    )


grpo = dr_grpo = dapo = ppo = _clipped


def gspo(inputs, settings):
    return _clipped(inputs, settings, importance_sampling_level="sequence")


def cispo(inputs, settings):
    given = settings["hyperparameters"]
    if settings["normaliser"] != "token_mean" or given["mask_epsilon_low"]:
        raise NotImplementedError("Liger's CISPO is averaged over tokens, and unmasked")
    return _asked(inputs, settings, loss_type="cispo", epsilon_high=given["max_ratio"])


def sapo(inputs, settings):
    given = settings["hyperparameters"]
    if settings["normaliser"] != "seq_mean_token_mean":
        raise NotImplementedError("Liger's SAPO is averaged over responses")
    tau = {f"sapo_temperature_{side}": given[f"tau_{side}"] for side in ("pos", "neg")}
    return _asked(inputs, settings, loss_type="sapo", **tau)
