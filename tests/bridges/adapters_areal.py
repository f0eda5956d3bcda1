"""AReaL's losses of padded rows, `areal.utils.functional.functional`."""

from importlib.metadata import version

from by_file import losses

FRAMEWORK = f"AReaL {version('areal')}"
THEIRS = losses(
    "areal.utils.functional.functional", "areal.api.cli_args", "areal.utils.data"
)


def asked(inputs, settings, loss="ppo_actor_loss_fn", **given):
    other = [name for name in ("kl", "cap", "placement") if settings.get(name)]
    if other or settings["normaliser"] != "token_mean":
        raise NotImplementedError("a mean over tokens, without a KL or a placement")
    mask, advantages = inputs["mask"].bool(), inputs["advantages"][:, None]
    old = {"proximal_logprobs": inputs["old_logp"], "old_logprobs": inputs["old_logp"]}
    if loss == "sapo_loss_fn":
        old.pop("proximal_logprobs")
    given |= {"loss_mask": mask, "advantages": advantages.expand_as(mask)}
    return getattr(THEIRS, loss)(inputs["logp"], **old, **given)[0]


def grpo(inputs, settings, level="token"):
    given = settings["hyperparameters"]
    clip = {"eps_clip": given["epsilon_low"], "eps_clip_higher": given["epsilon_high"]}
    clip |= {"c_clip": given.get("dual_clip"), "importance_sampling_level": level}
    return asked(inputs, settings, **clip)


def gspo(inputs, settings):
    return grpo(inputs, settings, "sequence")


def sapo(inputs, settings):
    return asked(inputs, settings, "sapo_loss_fn", **settings["hyperparameters"])


ppo = dr_grpo = dapo = grpo
