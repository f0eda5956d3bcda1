"""TRL's `GRPOTrainer._compute_loss`, asked on a stand-in that holds what it reads."""

from collections import defaultdict
from types import SimpleNamespace

import torch
import trl
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

FRAMEWORK = f"TRL {trl.__version__}"
AVERAGED = {"seq_mean_token_mean": "grpo", "token_mean": "dapo", "constant": "dr_grpo"}
KL = {"k3": False, "unbiased_k3": True}
"""TRL's KL is k3; with `use_bias_correction_kl`, its default, times the ratio."""


class _Alone:
    """An accelerator of one process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x):
        return x

    gather_for_metrics = gather

    def reduce(self, x, reduction):
        return x


def _asked(inputs, settings, of=GRPOTrainer, kl="k3", **own):
    if settings.get("placement"):
        raise NotImplementedError("TRL has no router shift")
    kl = settings.get("kl")
    if kl and kl not in KL:
        raise NotImplementedError("TRL's KL is k3")
    cap, mask = settings.get("cap"), inputs["mask"]
    args = GRPOConfig("unused", use_cpu=True, bf16=False, report_to=[])
    args.use_bias_correction_kl = KL.get(kl, False)
    args.steps_per_generation = 1
    for name in ("sapo_temperature_pos", "sapo_temperature_neg", "delta"):
        if name in own:
            setattr(args, name, own.pop(name))
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (
            inputs["logp"],
            torch.zeros_like(mask),
            None,
        ),
        accelerator=_Alone(),
        args=args,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=settings["max_length"],
        beta=settings.get("beta", 0.0),
        epsilon_low=0.2,
        epsilon_high=0.2,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=bool(cap),
        vllm_importance_sampling_correction=True,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    vars(trainer).update(own)
    batch = {
        "prompt_ids": torch.zeros(len(mask), 1),
        "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": inputs["advantages"],
        "old_per_token_logps": inputs["old_logp"],
        "ref_per_token_logps": inputs["ref_logp"],
        "num_items_in_batch": mask.sum(),
    }
    if cap:
        gap = inputs["old_logp"] - inputs["rollout_logp"]
        batch["importance_sampling_ratio"] = gap.exp().clamp(max=cap)
    return of._compute_loss(trainer, trainer.model, batch)


def _averaged(settings):
    name = settings["normaliser"]
    if name not in AVERAGED:
        raise NotImplementedError(f"TRL has no {name}")
    return AVERAGED[name]


def _clipped(inputs, settings, **own):
    given = settings["hyperparameters"]
    if given.get("dual_clip"):
        raise NotImplementedError("TRL's delta clips r where  > 0, too")
    return _asked(
        inputs,
        settings,
        loss_type=_averaged(settings),
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
        raise NotImplementedError("TRL's CISPO is averaged over tokens, and unmasked")
    cap = given["max_ratio"]
    return _asked(inputs, settings, loss_type="cispo", epsilon_high=cap)


def sapo(inputs, settings):
    given = settings["hyperparameters"]
    if settings["normaliser"] != "seq_mean_token_mean":
        raise NotImplementedError("TRL's SAPO is averaged over responses")
    tau = {f"sapo_temperature_{side}": given[f"tau_{side}"] for side in ("pos", "neg")}
    return _asked(inputs, settings, loss_type="sapo", **tau)


def gmpo(inputs, settings):
    given = settings["hyperparameters"]
    if settings["normaliser"] != "seq_mean_token_mean":
        raise NotImplementedError("TRL's GMPO is a mean over responses")
    return _asked(
        inputs,
        settings,
        of=GMPOTrainer,
        loss_type="grpo",
        epsilon_low=given["epsilon_low"],
        epsilon_high=given["epsilon_high"],
    )
