"""verl's registered policy losses."""

import verl
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.config import ActorConfig

FRAMEWORK = f"verl {verl.__version__}"
AVERAGED = {
    "seq_mean_token_mean": "seq-mean-token-mean",
    "token_mean": "token-mean",
    "constant": "seq-mean-token-sum-norm",
}
KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "k3+": "low_var_kl+"}


def _asked(name, inputs, settings, **own):
    if settings.get("placement"):
        raise NotImplementedError("verl has no router shift")
    averaged = settings["normaliser"]
    if averaged not in AVERAGED:
        raise NotImplementedError(f"verl has no {averaged}")
    own = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1} | own
    config, mode = ActorConfig(**own), AVERAGED[averaged]
    config.global_batch_info["loss_scale_factor"] = settings["max_length"]
    mask, weights = inputs["mask"], None
    if settings.get("cap"):
        gap = inputs["old_logp"] - inputs["rollout_logp"]
        weights = gap.exp().clamp(max=settings["cap"])
    loss, _ = get_policy_loss_fn(name)(
        old_log_prob=inputs["old_logp"],
        log_prob=inputs["logp"],
        advantages=inputs["advantages"][:, None].expand_as(mask),
        response_mask=mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weights,
    )
    if settings.get("kl"):
        if settings["kl"] not in KL:
            raise NotImplementedError(f"verl has no {settings['kl']}")
        each = kl_penalty(inputs["logp"], inputs["ref_logp"], KL[settings["kl"]])
        counts = config.global_batch_info
        loss = loss + settings["beta"] * agg_loss(each, mask, mode, **counts)
    return loss


def _bounds(settings):
    given = settings["hyperparameters"]
    low, high = given["epsilon_low"], given["epsilon_high"]
    return {"clip_ratio_low": low, "clip_ratio_high": high}


def _vanilla(inputs, settings):
    """As verl's examples have it; `clip_ratio_c`, the dual clip, cannot be off."""
    c = settings["hyperparameters"].get("dual_clip") or 3.0
    return _asked("vanilla", inputs, settings, clip_ratio_c=c, **_bounds(settings))


grpo = dr_grpo = dapo = ppo = _vanilla


def gspo(inputs, settings):
    return _asked("gspo", inputs, settings, **_bounds(settings))


gspo_token = gspo


def cispo(inputs, settings):
    """verl's bounds are 1 − low and 1 + high; with low = 1 there is no lower one."""
    given = settings["hyperparameters"]
    if given["mask_epsilon_low"]:
        raise NotImplementedError("verl's CISPO has no mask")
    own = {"clip_ratio_low": 1.0, "clip_ratio_high": given["max_ratio"] - 1}
    return _asked("cispo", inputs, settings, **own)


def gmpo(inputs, settings):
    return _asked("geo_mean", inputs, settings, **_bounds(settings))


def sapo(inputs, settings):
    given = settings["hyperparameters"]
    tau = {"tau_pos": given["tau_pos"], "tau_neg": given["tau_neg"]}
    return _asked("sapo", inputs, settings, **tau)
