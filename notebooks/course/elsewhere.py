"""The settings that make TRL 1.16 and verl 0.9.1 compute each method's loss."""

from collections.abc import Iterable
from typing import NamedTuple


class Settings(NamedTuple):
    trl: str
    verl: str


ELSEWHERE = {
    "reinforce": Settings("RLOOTrainer", "algorithm.adv_estimator=rloo"),
    "ppo": Settings(
        "removed in 1.13",
        "adv_estimator=gae, policy_loss.loss_mode=vanilla, clip_ratio_c=1e9",
    ),
    "grpo": Settings(
        "loss_type=grpo; the paper's KL: beta=0.04, use_bias_correction_kl=False",
        "adv_estimator=grpo, loss_agg_mode=seq-mean-token-mean, clip_ratio_c=1e9",
    ),
    "dr_grpo": Settings(
        "loss_type=dr_grpo and scale_rewards=none",
        "loss_agg_mode=seq-mean-token-sum-norm, norm_adv_by_std_in_grpo=False, "
        "clip_ratio_c=1e9",
    ),
    "gspo": Settings(
        "loss_type=grpo, importance_sampling_level=sequence, "
        "epsilon=3e-4, epsilon_high=4e-4",
        "policy_loss.loss_mode=gspo, loss_agg_mode=seq-mean-token-mean, "
        "clip_ratio_low=3e-4, clip_ratio_high=4e-4",
    ),
    "gspo_token": Settings(
        "none: importance_sampling_level is token or sequence",
        "policy_loss.loss_mode=gspo (verl has this form under that name)",
    ),
    "dapo": Settings(
        "loss_type=dapo, epsilon_high=0.28 (no dynamic sampling)",
        "loss_agg_mode=token-mean, clip_ratio_high=0.28, clip_ratio_c=1e9, "
        "algorithm.filter_groups",
    ),
    "cispo": Settings(
        "loss_type=cispo, epsilon_high=5.0 (the cap itself)",
        "policy_loss.loss_mode=cispo, clip_ratio_low=1, clip_ratio_high=4 (cap − 1)",
    ),
    "gmpo": Settings(
        "trl.experimental.gmpo.GMPOTrainer, epsilon=0.4",
        "policy_loss.loss_mode=geo_mean, clip_ratio_low=0.4, clip_ratio_high=0.4",
    ),
    "rspo": Settings("not implemented", "not implemented"),
    "sapo": Settings(
        "loss_type=sapo, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05",
        "policy_loss.loss_mode=sapo, tau_pos=1.0, tau_neg=1.05",
    ),
    "dppo_tv": Settings(
        "removed in July 2026",
        "policy_loss.loss_mode=dppo_tv, clip_ratio_low=0.2, clip_ratio_high=0.2, "
        "clip_ratio_c=20",
    ),
    "dppo_kl": Settings(
        "removed in July 2026",
        "policy_loss.loss_mode=dppo_kl, clip_ratio_low=0.05, clip_ratio_high=0.05, "
        "clip_ratio_c=20",
    ),
    "ipo": Settings("not implemented", "policy_loss.loss_mode=refimpl_ipo"),
    "glm5": Settings("not implemented", "policy_loss.loss_mode=refimpl_glm5"),
    "vespo": Settings(
        "loss_type=vespo, vespo_k_pos=2, vespo_lambda_pos=3, vespo_k_neg=3, "
        "vespo_lambda_neg=2",
        "policy_loss.loss_mode=refimpl_vespo",
    ),
    "luspo": Settings(
        "loss_type=luspo, importance_sampling_level=sequence, epsilon=2e-3, "
        "epsilon_high=2.5e-3",
        "policy_loss.loss_mode=gspo, loss_agg_mode=seq-mean-token-sum, "
        "clip_ratio_low=2e-3, clip_ratio_high=2.5e-3",
    ),
    "minirl": Settings(
        "loss_type=luspo, importance_sampling_level=token, epsilon=0.2, "
        "epsilon_high=0.27, scale_rewards=none",
        "loss_agg_mode=seq-mean-token-sum, clip_ratio_low=0.2, clip_ratio_high=0.27, "
        "norm_adv_by_std_in_grpo=False, clip_ratio_c=1e9",
    ),
    "dro": Settings(
        "not implemented",
        "policy_loss.loss_mode=dro, policy_loss.dro_beta=0.1, "
        "norm_adv_by_std_in_grpo=False",
    ),
    "kimi": Settings("not implemented", "policy_loss.loss_mode=refimpl_kimi"),
}
"""By `Algorithm.name`; a method that is not here has no known settings there."""


def rows(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """A table's lines: the method's name here, its settings in TRL and in verl."""
    unknown = Settings("–", "–")
    return [(name, *ELSEWHERE.get(name, unknown)) for name in names]
