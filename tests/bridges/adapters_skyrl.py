"""SkyRL's registered policy losses, which are sums over advantages that were scaled."""

from importlib.metadata import version
from types import SimpleNamespace as Config
from unittest.mock import patch

from by_file import losses

FRAMEWORK = f"SkyRL {version('skyrl')}"
PLACE = "skyrl.backends.skyrl_train.utils"
ABSENT = "ray", "loguru", "skyrl.train.config", f"{PLACE}.off_policy_correction_utils"
THEIRS = losses(f"{PLACE}.ppo_utils", *ABSENT)
AVERAGED = {
    "seq_mean_token_mean": "sequence_mean",
    "token_mean": "token_mean",
    "constant": "seq_mean_token_sum_norm",
    "group_token_mean": "prompt_mean",
}
uncorrected = patch.object(
    THEIRS,
    "apply_off_policy_correction",
    lambda loss, _, __, mask, ___: (loss, mask, {}),
)


def asked(inputs, settings, loss, **given):
    averaged, mask = settings["normaliser"], inputs["mask"]
    other = [name for name in ("kl", "cap", "placement") if settings.get(name)]
    if other or averaged not in AVERAGED:
        raise NotImplementedError(f"no {other or averaged}")
    rows = settings["max_length"], [(0, 2), (2, 4)]
    scaled = THEIRS.apply_loss_reduction_to_advantages_minibatch(
        inputs["advantages"][:, None].expand_as(mask).clone(),
        mask,
        AVERAGED[averaged],
        len(mask),
        *rows,
    )
    config = Config(**given, loss_reduction="sequence_mean", off_policy_correction=None)
    with uncorrected:
        return getattr(THEIRS, loss)(
            inputs["logp"], inputs["old_logp"], scaled, config, mask
        )[0]


def clipped(inputs, settings, loss="ppo_policy_loss"):
    given = settings["hyperparameters"]
    clip = {
        "eps_clip_low": given["epsilon_low"],
        "eps_clip_high": given["epsilon_high"],
    }
    c = given.get("dual_clip")
    clip |= {"policy_loss_type": "dual_clip" if c else "regular", "clip_ratio_c": c}
    return asked(inputs, settings, loss, **clip)


def gspo_token(inputs, settings):
    return clipped(inputs, settings, "gspo_policy_loss")


def sapo(inputs, settings):
    given = Config(**settings["hyperparameters"])
    return asked(inputs, settings, "sapo_policy_loss", sapo=given)


def cispo(inputs, settings):
    given = settings["hyperparameters"]
    if given.get("mask_epsilon_low") or given.get("mask_epsilon_high"):
        raise NotImplementedError("no mask beside the weight")
    bounds = {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": given["max_ratio"] - 1}
    return asked(inputs, settings, "compute_policy_loss_cispo", cispo=Config(**bounds))


gspo, ppo, grpo, dr_grpo, dapo = gspo_token, clipped, clipped, clipped, clipped
