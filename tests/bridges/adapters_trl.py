"""TRL's `GRPOTrainer._compute_loss`, asked on a stand-in that holds what it reads."""

from collections import defaultdict
from types import SimpleNamespace

import torch
import trl
from accelerate import Accelerator
from named_as_trl import bias_corrected, losses
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

FRAMEWORK = f"TRL {trl.__version__}"


def asked(inputs, settings, of=GRPOTrainer, **given):
    cap, mask = settings.get("cap"), inputs["mask"]
    args = GRPOConfig("unused", use_cpu=True, bf16=False, report_to=[])
    args.use_bias_correction_kl = bias_corrected(settings)
    args.steps_per_generation = 1
    for name in [name for name in given if name.startswith(("sapo_", "vespo_"))]:
        setattr(args, name, given.pop(name))
    scores = inputs["logp"], torch.zeros_like(mask), None
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: scores,
        accelerator=Accelerator(cpu=True),
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
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    vars(trainer).update(given)
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
        gap = (inputs["old_logp"] - inputs["rollout_logp"]) * mask
        batch["importance_sampling_ratio"] = gap.exp().clamp(max=cap)
    return of._compute_loss(trainer, trainer.model, batch)


grpo, gspo, cispo, sapo, vespo = losses(asked)
dr_grpo = dapo = ppo = minirl = grpo
luspo = gspo


def gmpo(inputs, settings):
    if settings["normaliser"] != "seq_mean_token_mean":
        raise NotImplementedError("TRL's GMPO is a mean over responses")
    given = settings["hyperparameters"]
    return asked(inputs, settings, of=GMPOTrainer, loss_type="grpo", **given)
