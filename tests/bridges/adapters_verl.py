"""verl's registered policy losses."""

import verl
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.config import ActorConfig, PolicyLossConfig

FRAMEWORK = f"verl {verl.__version__}"
AVERAGED = {
    "seq_mean_token_mean": "seq-mean-token-mean",
    "token_mean": "token-mean",
    "constant": "seq-mean-token-sum-norm",
    "seq_mean_token_sum": "seq-mean-token-sum",
}
KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "k3+": "low_var_kl+"}


def asked(name, inputs, settings, counts=None, **given):
    averaged, kl = settings["normaliser"], settings.get("kl")
    for known, what in (
        (not settings.get("placement"), "router shift"),
        (averaged in AVERAGED, averaged),
        (kl is None or kl in KL, kl),
    ):
        if not known:
            raise NotImplementedError(f"verl has no {what}")
    one = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    config, mode = ActorConfig(**one | given), AVERAGED[averaged]
    counts = {"loss_scale_factor": settings["max_length"], **(counts or {})}
    config.global_batch_info.update(counts)
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
    if kl:
        each = kl_penalty(inputs["logp"], inputs["ref_logp"], KL[kl])
        loss = loss + settings["beta"] * agg_loss(each, mask, mode, **counts)
    return loss


def _loss(name, **names):
    """The adapter of one of them, whose settings have these names in verl."""

    def ask(inputs, settings):
        given = settings["hyperparameters"]
        changed = {theirs: given[ours] for theirs, ours in names.items()}
        if name == "vanilla":  # its dual clip cannot be off
            changed["clip_ratio_c"] = given.get("dual_clip") or 3.0
        if name == "dro":
            changed = {"policy_loss": PolicyLossConfig("dro", dro_beta=given["tau"])}
        return asked(name, inputs, settings, **changed)

    return ask


BOUNDS = {"clip_ratio_low": "epsilon_low", "clip_ratio_high": "epsilon_high"}
DELTAS = {"clip_ratio_low": "delta_low", "clip_ratio_high": "delta_high"}
DELTAS |= {"clip_ratio_c": "max_ratio"}
grpo = dr_grpo = dapo = ppo = minirl = _loss("vanilla", **BOUNDS)
gspo = gspo_token = luspo = _loss("gspo", **BOUNDS)
dppo_tv, dppo_kl = _loss("dppo_tv", **DELTAS), _loss("dppo_kl", **DELTAS)
dro = _loss("dro")
gmpo = _loss("geo_mean", **BOUNDS)
sapo = _loss("sapo", tau_pos="tau_pos", tau_neg="tau_neg")


def cispo(inputs, settings):
    """verl's bounds are 1 − low and 1 + high; with low = 1 there is no lower one."""
    given = settings["hyperparameters"]
    if given["mask_epsilon_low"]:
        raise NotImplementedError("verl's CISPO has no mask")
    high = given["max_ratio"] - 1
    return asked("cispo", inputs, settings, clip_ratio_low=1.0, clip_ratio_high=high)
