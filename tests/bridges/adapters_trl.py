"""TRL's `GRPOTrainer._compute_loss`, asked on a stand-in that holds what it reads."""

from collections import defaultdict
from types import SimpleNamespace

import torch
import trl
from named_as_trl import bias_corrected, losses
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

FRAMEWORK = f"TRL {trl.__version__}"


class _Alone:
    """An accelerator of one process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x):
        return x

    gather_for_metrics = gather

    def reduce(self, x, reduction):
        return x


def _asked(inputs, settings, of=GRPOTrainer, **own):
    cap, mask = settings.get("cap"), inputs["mask"]
    args = GRPOConfig("unused", use_cpu=True, bf16=False, report_to=[])
    args.use_bias_correction_kl = bias_corrected(settings)
    args.steps_per_generation = 1
    for name in ("sapo_temperature_pos", "sapo_temperature_neg"):
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


grpo, gspo, cispo, sapo = losses(_asked)
dr_grpo = dapo = ppo = grpo


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
