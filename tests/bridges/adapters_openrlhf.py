"""OpenRLHF's `PolicyLoss`."""

from importlib.metadata import version

from by_file import losses

FRAMEWORK = f"OpenRLHF {version('openrlhf')}"
LOSS = losses("openrlhf.models.loss", "deepspeed").PolicyLoss
AVERAGED = {"token_mean": True, "seq_mean_token_mean": False}


def asked(inputs, settings, kind="ppo"):
    given, averaged = settings["hyperparameters"], settings["normaliser"]
    if averaged not in AVERAGED or settings.get("kl") or settings.get("placement"):
        raise NotImplementedError("no such average, KL in the loss, or router shift")
    if kind == "gspo" and (AVERAGED[averaged] or settings.get("cap")):
        raise NotImplementedError("a GSPO of its own: a mean over responses, no TIS")
    loss = LOSS(
        given["epsilon_low"],
        given["epsilon_high"],
        given.get("dual_clip"),
        token_level_loss=AVERAGED[averaged],
        policy_loss_type=kind,
        is_correction_level="token" if settings.get("cap") else "off",
        is_correction_mode="clip" if settings.get("cap") else "mask",
        is_correction_threshold=[0.0, settings.get("cap", 0.0)],
    )
    given = inputs["logp"], inputs["old_logp"], inputs["advantages"][:, None]
    return loss(*given, inputs["mask"], inputs["rollout_logp"])[0]


def gspo(inputs, settings):
    return asked(inputs, settings, "gspo")


ppo = grpo = dr_grpo = dapo = asked
