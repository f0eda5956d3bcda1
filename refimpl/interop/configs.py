"""Write verl's configuration for a method.

    python -m refimpl verl-config sapo > sapo.yaml

verl need not be installed. The method itself supplies everything that differs between
methods: the normaliser's name in verl, the advantages, the critic, dynamic sampling.
"""

from refimpl import advantages, algorithms, normalisers
from refimpl.algorithms import Algorithm
from refimpl.validation import UserError

PREFIX = "refimpl_"
TEMPLATE = """\
# {title} in verl: what differs from its own ppo_trainer.
#
#   python -m refimpl verl-config {name} > {name}.yaml
#   python -m verl.trainer.main_ppo --config-dir . --config-name {name} \\
#     data.train_files=...
#
# K, updates per rollout, is train_batch_size / ppo_mini_batch_size * ppo_epochs = 4.
hydra:
  searchpath:
    - pkg://verl.trainer.config

defaults:
  - ppo_trainer
  - _self_

data:
  train_batch_size: 256

algorithm:
  adv_estimator: {estimator}
actor_rollout_ref:
  actor:
    policy_loss:
      loss_mode: {prefix}{name}
    loss_agg_mode: {averaged}
    ppo_mini_batch_size: 64
    use_kl_loss: false
"""
SAME = "opo", "gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"
ESTIMATORS = {
    advantages.group_relative: "grpo\n",
    advantages.group_centred: "grpo\n"
    "  norm_adv_by_std_in_grpo: False  # the other half of the method\n",
    advantages.leave_one_out: "rloo\n",
    **{getattr(advantages, name): f"{name}\n" for name in SAME},
}
"""verl's names for advantages, with the further settings that they need."""


def missing(algorithm: Algorithm) -> str | None:
    """Return the reason why verl cannot run this method; None if it can."""
    if algorithm.training.get("router_shift"):
        return (
            f"{algorithm.name} needs the routing of two passes, but verl gives a "
            "policy loss only log-probs (the bridge to TRL supports it)"
        )
    if getattr(algorithm.normaliser, "verl", None) is None:
        known = (getattr(f, "verl", None) for f in normalisers.NORMALISERS.values())
        names = filter(None, known)
        return (
            f"{algorithm.name} is averaged by {algorithm.normaliser.__name__}, but "
            f"verl has only {', '.join(names)}"
        )
    return None


def yaml_of(algorithm: str | Algorithm) -> str:
    """Return the YAML with which verl trains `algorithm`, a name or an `Algorithm`.

    Raises `UserError` if there is no such method, or if verl cannot run it.
    """
    method = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    if why := missing(method):
        raise UserError(why)
    yours = f"{method.advantages.__name__}  # yours: verl's register_adv_est takes it\n"
    estimator = ESTIMATORS.get(method.advantages, yours)
    if method.training.get("dynamic_sampling"):
        estimator += "  filter_groups:\n    enable: true  # dynamic sampling\n"
        estimator += "    metric: reward\n"
    averaged = method.normaliser.verl  # type: ignore[attr-defined]
    if averaged == normalisers.constant.verl:  # type: ignore[attr-defined]
        averaged += "\n    loss_scale_factor: ${data.max_response_length}"
    text = TEMPLATE.format(
        title=method.title,
        name=method.name,
        prefix=PREFIX,
        estimator=estimator,
        averaged=averaged,
    )
    if method.critic or method.advantages in advantages.SINGLE:
        return text
    return text + "  rollout:\n    n: 8  # responses to a prompt, G\n"
