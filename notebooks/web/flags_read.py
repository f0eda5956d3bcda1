"""What eight engines call the course's methods, each cell from a source that was read.

In these strings `…` marks code, `repository/path@commit` a file on GitHub,
`repository#n` an issue or pull request there. A cell is one of five kinds: *settings*;
*partly*, where they give a part of the loss; *absent*, where the source lists all its
losses and this one is not among them; *not found*, where no such list could be read;
*not read*, where nobody has looked for a method that is new here.
TRL's and verl's cells are made in `flags`.
"""

from typing import Literal, NamedTuple


class Cell(NamedTuple):
    kind: Literal["settings", "partly", "absent", "not found", "not read"]
    settings: str
    """What to set; of the last three kinds, the kind."""
    differs: str
    """Where the engine's formula is not the paper's, or why there is none."""
    source: str


NOT_READ = Cell(
    "not read",
    "not read",
    "Nobody has looked for this method in this engine yet.",
    "none",
)


def given(settings: str, source: str, differs: str = "none noted") -> Cell:
    return Cell("settings", settings, differs, source)


def _partly(settings: str, source: str, differs: str) -> Cell:
    return Cell("partly", settings, differs, source)


def _absent(methods: str, why: str, source: str) -> dict[str, Cell]:
    return dict.fromkeys(methods.split(), Cell("absent", "absent", why, source))


_LATER = "dppo_tv dppo_kl ipo glm5 vespo luspo minirl dro kimi"
"""The methods after SAPO."""

ENGINES = {
    "TRL": "1.16.0, its wheel; losses and gradients were compared",
    "verl": "0.9.1, its wheel; losses and gradients were compared",
    "OpenRLHF": "0.11.2, its wheel",
    "NeMo-RL": "the repository: the loss at 006907a957, guides at the commits named",
    "slime": "the repository: the loss at 2fc4883150, flags at f4fcce8dfd, #2067",
    "prime-rl": "the repository's main branch with #3526 and #3586, 2026-09-18",
    "SkyRL": "0.3.0, its wheel",
    "ROLL": "the repository: the loss at 4dc7f5b3b2; documentation, 2026-11",
    "ms-swift": "4.6.0, its wheel",
    "Unsloth": "2026.10.9 with unsloth_zoo 2026.10.9, their wheels (TRL ≤ 1.15.0)",
}
"""By name: what was read. A stored copy of a repository says its commit, not its date,
and may be a branch's: a flag of slime's or prime-rl's stands here if its pull request
was merged."""

# ---------------------------------------------------------------------------
# OpenRLHF
# ---------------------------------------------------------------------------
_LOSS = "`openrlhf/models/loss.py` and `openrlhf/cli/train_ppo_ray.py`, OpenRLHF 0.11.2"
_MAKER = (
    "`openrlhf/trainer/ppo_utils/experience_maker.py` and "
    "`openrlhf/cli/train_ppo_ray.py`, OpenRLHF 0.11.2"
)
_OPENRLHF = {
    "reinforce": given(
        "`--algo.advantage.estimator rloo`, `--algo.kl.init_coef 0`",
        _MAKER,
        "PPO's clip stays around it. `reinforce` is REINFORCE++, and "
        "`reinforce_baseline` takes the group's mean; both are whitened.",
    ),
    "ppo": given(
        "`--algo.advantage.estimator gae`, `--actor.policy_loss_type ppo`, "
        "`--actor.eps_clip 0.2`, `--algo.advantage.lambd 0.95`, "
        "`--algo.kl.init_coef 0`",
        _MAKER,
        "λ is 1 by default. Advantages are whitened over the batch unless "
        "`--algo.advantage.no_std_norm` leaves the std out. Dual clip is off.",
    ),
    "grpo": given(
        "`--algo.advantage.estimator group_norm`, "
        "`--actor.loss_agg_mode seq-mean-token-mean`, `--algo.kl.use_loss`, "
        "`--algo.kl.estimator k3`, `--algo.kl.init_coef 0.04`",
        _MAKER,
        "The mean is over all tokens (`token-mean`) unless you ask for the paper's.",
    ),
    "dr_grpo": _partly(
        "`--algo.advantage.estimator dr_grpo`, `--algo.kl.init_coef 0`",
        _MAKER,
        "The advantage alone: `--actor.loss_agg_mode` has no constant divisor.",
    ),
    "gspo": given(
        "`--actor.policy_loss_type gspo`, `--actor.eps_clip_low_high 3e-4 4e-4`, "
        "`--algo.advantage.estimator group_norm`, `--algo.kl.init_coef 0`",
        _LOSS,
        "The mean is always over responses. With `is_correction_level` on, the ratio "
        "is taken to the sampler's policy.",
    ),
    "dapo": given(
        "`--actor.eps_clip_low_high 0.2 0.28`, `--actor.loss_agg_mode token-mean`, "
        "`--algo.advantage.estimator group_norm`, `--algo.dynamic_filtering_enable`, "
        "`--reward.overlong_buffer_len`, `--algo.kl.init_coef 0`",
        _LOSS,
        "The token mean is the batch's; the paper's is each group's.",
    ),
    **_absent(
        f"gspo_token cispo gmpo rspo sapo {_LATER}",
        "`--actor.policy_loss_type` is `ppo` or `gspo`.",
        _LOSS,
    ),
}

# ---------------------------------------------------------------------------
# NeMo-RL
# ---------------------------------------------------------------------------
_NEMO = "NVIDIA-NeMo/RL/"
_CLIPPED = f"{_NEMO}nemo_rl/algorithms/loss/loss_functions.py@006907a957"
_ESTIMATOR = f"{_NEMO}nemo_rl/algorithms/advantage_estimator.py@165f994bde"
_NEMO_NO_KL = "`loss_fn.reference_policy_kl_penalty: 0`"
_NEMO_LIST = (
    f"{_CLIPPED}, {_NEMO}nemo_rl/algorithms/loss/__init__.py@0fdcdb485a (the list)"
)
_NEMO_RL = {
    "reinforce": given(
        "`loss_fn.disable_ppo_ratio: true`, "
        "`grpo.adv_estimator.use_leave_one_out_baseline: true`, "
        "`grpo.adv_estimator.normalize_rewards: false`, "
        f"{_NEMO_NO_KL}",
        f"{_CLIPPED}, {_ESTIMATOR}, {_NEMO}docs/guides/prorlv2.md@2b9afb3015",
        "No ratio and no clip at all. For REINFORCE++ set "
        "`grpo.adv_estimator.name: reinforce_plus_plus`.",
    ),
    "ppo": given(
        "`ppo.adv_estimator.name: gae`, `loss_fn.ratio_clip_min: 0.2`, "
        "`loss_fn.ratio_clip_max: 0.2`, `loss_fn.ratio_clip_c: null`, "
        f"{_NEMO_NO_KL}",
        f"{_NEMO}docs/guides/ppo.md@61afe37fd5, {_CLIPPED}",
        "A script of its own, `examples/run_ppo.py`. The guide's example has "
        "`ratio_clip_max: 0.28` and a dual clip of 10.",
    ),
    "grpo": given(
        "`loss_fn.token_level_loss: false`, `loss_fn.ratio_clip_min: 0.2`, "
        "`loss_fn.ratio_clip_max: 0.2`, `loss_fn.reference_policy_kl_type: k3`, "
        "`loss_fn.reference_policy_kl_penalty: 0.04`, "
        "`grpo.adv_estimator.use_leave_one_out_baseline: false`, "
        "`grpo.adv_estimator.normalize_rewards: true`",
        f"{_CLIPPED}, {_ESTIMATOR}",
        "The mean is over all tokens by default. The KL term's gradient holds the "
        "score-function part, which GRPO's printed form leaves out.",
    ),
    "dr_grpo": _partly(
        "`grpo.adv_estimator.normalize_rewards: false`, "
        "`grpo.adv_estimator.use_leave_one_out_baseline: false`, "
        f"{_NEMO_NO_KL}",
        f"{_ESTIMATOR}, {_CLIPPED}",
        "The advantage alone: the mean is over tokens or over responses, and there is "
        "no constant divisor.",
    ),
    "gspo": given(
        "`loss_fn.sequence_level_importance_ratios: true`, "
        "`loss_fn.token_level_loss: false`, `loss_fn.ratio_clip_min: 3e-4`, "
        f"`loss_fn.ratio_clip_max: 4e-4`, {_NEMO_NO_KL}",
        _CLIPPED,
        "With `use_importance_sampling_correction` a response is weighted by the "
        "product of its tokens' ratios to the sampler.",
    ),
    "dapo": given(
        "`grpo.use_dynamic_sampling: true`, `grpo.batch_multiplier`, "
        "`grpo.reward_shaping.enabled: true`, `loss_fn.ratio_clip_max: 0.28`, "
        f"`loss_fn.token_level_loss: true`, {_NEMO_NO_KL}",
        f"{_NEMO}docs/guides/dapo.md@42d57888da, {_CLIPPED}",
        "The token mean is the batch's; the paper's is each group's.",
    ),
    "cispo": given(
        "`loss_fn.use_cispo: true`, `loss_fn.token_level_loss: true`, "
        "`loss_fn.ratio_clip_min: 1.0`, `loss_fn.ratio_clip_max: 4.0` (cap − 1), "
        f"`loss_fn.ratio_clip_c: null`, {_NEMO_NO_KL}",
        f"{_NEMO}docs/guides/cispo.md@9c1edd8161, {_CLIPPED}, NVIDIA-NeMo/RL#2531",
        "Both bounds are counted from 1, so the guide's 5.0 is a cap of 6.",
    ),
    **_absent(
        f"gspo_token gmpo rspo {_LATER}",
        "One clipped loss serves all; its configuration has no such switch.",
        _NEMO_LIST,
    ),
    **_absent(
        "sapo",
        "One clipped loss serves all; its configuration has no soft gate. Two pull "
        "requests are open.",
        f"{_NEMO_LIST}, NVIDIA-NeMo/RL#2455, NVIDIA-NeMo/RL#2464",
    ),
}

# ---------------------------------------------------------------------------
# slime
# ---------------------------------------------------------------------------
_SLIME_LOSS = "THUDM/slime/slime/backends/megatron_utils/loss.py@2fc4883150"
_SLIME_USAGE = "THUDM/slime/docs/en/get_started/usage.md@4da70cf7bc"
_SLIME_FLAGS = "THUDM/slime/slime/utils/arguments.py@f4fcce8dfd"
_SLIME_LIST = f"{_SLIME_USAGE}, THUDM/slime#2067"
_SLIME = {
    "reinforce": given(
        "`--advantage-estimator reinforce_plus_plus_baseline`",
        f"{_SLIME_USAGE}, {_SLIME_LOSS}",
        "The baseline is the group's mean, not the mean of the others, and PPO's clip "
        "stays around it. `--normalize-advantages` whitens.",
    ),
    "ppo": given(
        "`--advantage-estimator ppo`, `--eps-clip 0.2`, `--gamma 1`, `--lambd 0.95`, "
        "`--value-clip 0.2`, `--calculate-per-token-loss`",
        f"{_SLIME_USAGE}, {_SLIME_LOSS}",
        "λ is 1 by default, and the mean is over responses unless the last flag is "
        "given.",
    ),
    "grpo": given(
        "`--advantage-estimator grpo`, `--eps-clip 0.2`, `--use-kl-loss`, "
        "`--kl-loss-type k3`, `--kl-loss-coef 0.04`",
        f"{_SLIME_USAGE}, {_SLIME_LOSS}",
        "The mean per response is the default here. `low_var_kl` clamps k3 at ±10, "
        "`--use-unbiased-kl` multiplies it by the ratio.",
    ),
    "dr_grpo": given(
        "`--advantage-estimator grpo`, `--disable-grpo-std-normalization`, "
        "`--custom-pg-loss-reducer-function-path`",
        f"{_SLIME_FLAGS}, THUDM/slime#1235, THUDM/slime#2060",
        "The constant divisor is a function of yours. `--pg-loss-divisor` (#2060), "
        "which would do it, was closed and not merged.",
    ),
    "gspo": given(
        "`--advantage-estimator gspo`, `--eps-clip 3e-4`, `--eps-clip-high 4e-4`",
        f"{_SLIME_USAGE}, {_SLIME_LOSS}, {_SLIME_FLAGS}",
    ),
    "dapo": given(
        "`--advantage-estimator grpo`, `--eps-clip 0.2`, `--eps-clip-high 0.28`, "
        "`--calculate-per-token-loss`, `--dynamic-sampling-filter-path "
        "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std`",
        f"{_SLIME_USAGE}, THUDM/slime/docs/en/get_started/customization.md@1bc7cd9ed0",
        "The token mean is the batch's; the paper's is each group's. No flag for the "
        "overlong punishment was found.",
    ),
    "cispo": given(
        "`--advantage-estimator cispo`, `--eps-clip 1.0`, `--eps-clip-high 4.0` "
        "(cap − 1)",
        "THUDM/slime#2067, merged in 2026-06",
        "Both bounds are counted from 1, and the defaults are PPO's. The mean is over "
        "responses unless `--calculate-per-token-loss` is given.",
    ),
    **_absent(
        f"gspo_token gmpo rspo {_LATER}",
        "`--advantage-estimator` has no such value; `--loss-type custom_loss` takes a "
        "function of yours.",
        f"{_SLIME_LIST}, {_SLIME_FLAGS}",
    ),
    **_absent(
        "sapo",
        "`--advantage-estimator` has no such value. A pull request is open.",
        f"{_SLIME_LIST}, THUDM/slime#954, THUDM/slime#1864",
    ),
}

# ---------------------------------------------------------------------------
# prime-rl
# ---------------------------------------------------------------------------
_PRIME = "PrimeIntellect-ai/prime-rl"
_PRIME_DOCS = (
    f"{_PRIME} `docs/algorithms.md` on main, {_PRIME}#3418 (2026-08-27), "
    f"{_PRIME}#3526 (2026-09-10), {_PRIME}#3586 (2026-09-18)"
)
_PRIME_RL = {
    "grpo": _partly(
        '`[orchestrator.train.algo] type = "grpo"`, `[trainer.loss] type = "ipo"`',
        _PRIME_DOCS,
        "GRPO's groups with another loss: no std, no clip. IPO drops a token whose "
        "probability moved by more than `eps` from the sampler's, and averages over "
        "all tokens.",
    ),
    "dr_grpo": _partly(
        '`[orchestrator.train.algo] type = "grpo"`, `[trainer.loss] type = "ipo"`',
        _PRIME_DOCS,
        "The advantage alone, R − R̄: the loss is IPO's and averaged over all tokens, "
        "without a constant divisor.",
    ),
    **_absent(
        "reinforce",
        "No leave-one-out among its algorithms: `grpo` takes the group's mean, `rae` a "
        "moving average of each agent's rewards.",
        _PRIME_DOCS,
    ),
    **_absent(
        "ppo",
        "No GAE and no clip. The guide's example of a `custom` loss is PPO's clip.",
        _PRIME_DOCS,
    ),
    **_absent(
        "dapo",
        "No clip to raise. Samples without a signal are dropped and replaced, and "
        '`loss_aggregation = "prompt"` is DAPO\'s mean of each group.',
        _PRIME_DOCS,
    ),
    "ipo": given(
        '`[trainer.loss] type = "ipo"`, `eps = 0.3`',
        _PRIME_DOCS,
        "The ratio is capped at 1e4, its gradient with it.",
    ),
    "glm5": given(
        '`[trainer.loss] type = "icepop"`, `ratio_low = 0.8`, `ratio_high = 1.2`',
        _PRIME_DOCS,
        "IcePop's band around the same ratio: the bounds themselves are kept, and the "
        "ratio stands in the objective, which has the same gradient.",
    ),
    **_absent(
        "dppo_tv dppo_kl",
        f"The default from April 2026 ({_PRIME}#2187, total variation) to August, when "
        f"{_PRIME}#3418 removed it.",
        _PRIME_DOCS,
    ),
    **_absent(
        "gspo gspo_token cispo gmpo rspo sapo vespo luspo minirl dro kimi",
        "`[trainer.loss] type` is `ipo`, `icepop` or `custom`, a function of yours.",
        _PRIME_DOCS,
    ),
}

# ---------------------------------------------------------------------------
# SkyRL
# ---------------------------------------------------------------------------
_SKY = (
    "`skyrl/backends/skyrl_train/utils/ppo_utils.py` and "
    "`skyrl/train/config/config.py`, SkyRL 0.3.0"
)
_SKY_NO_KL = "`trainer.algorithm.use_kl_loss=false`"


def _sky_dppo(kind: str, delta: float) -> Cell:
    return given(
        "`trainer.algorithm.policy_loss_type=dppo`, "
        f"`trainer.algorithm.dppo.dppo_type=binary_{kind}`, "
        f"`trainer.algorithm.dppo.delta_low={delta}`, "
        f"`trainer.algorithm.dppo.delta_high={delta}`, {_SKY_NO_KL}",
        f"{_SKY}, NovaSky-AI/SkyRL#1037",
        "Against the sampler's log-probs: π_old is not asked (NovaSky-AI/SkyRL#1813).",
    )


_SKYRL = {
    "reinforce": given(
        "`trainer.algorithm.advantage_estimator=rloo`, "
        f"`trainer.algorithm.policy_loss_type=importance_sampling`, {_SKY_NO_KL}",
        _SKY,
        "This loss has the token's ratio and no clip; `regular` has PPO's. "
        "`reinforce++` whitens over the batch.",
    ),
    "ppo": given(
        "`trainer.algorithm.advantage_estimator=gae`, "
        "`trainer.algorithm.policy_loss_type=regular`, "
        f"`trainer.algorithm.lambd=0.95`, {_SKY_NO_KL}",
        _SKY,
        "λ is 1 by default, and advantages are whitened. `dual_clip` is a type of its "
        "own.",
    ),
    "grpo": given(
        "`trainer.algorithm.advantage_estimator=grpo`, "
        "`trainer.algorithm.loss_reduction=sequence_mean`, "
        "`trainer.algorithm.use_kl_loss=true`, "
        "`trainer.algorithm.kl_estimator_type=k3`, "
        "`trainer.algorithm.kl_loss_coef=0.04`",
        _SKY,
        "The mean is over all tokens by default, and β is 0.001.",
    ),
    "dr_grpo": given(
        "`trainer.algorithm.grpo_norm_by_std=false`, "
        "`trainer.algorithm.loss_reduction=seq_mean_token_sum_norm`, "
        f"`trainer.algorithm.max_seq_len`, {_SKY_NO_KL}",
        _SKY,
        "The divisor `max_seq_len` has no default: it must be given.",
    ),
    "gspo": given(
        "`trainer.algorithm.policy_loss_type=gspo`, "
        "`trainer.algorithm.loss_reduction=sequence_mean`, "
        "`trainer.algorithm.eps_clip_low=3e-4`, "
        f"`trainer.algorithm.eps_clip_high=4e-4`, {_SKY_NO_KL}",
        _SKY,
        "It is the -token form, which has GSPO's gradient where all tokens of a "
        "response share their advantage.",
    ),
    "gspo_token": given(
        "`trainer.algorithm.policy_loss_type=gspo`, "
        f"`trainer.algorithm.loss_reduction=sequence_mean`, {_SKY_NO_KL}",
        _SKY,
        "The form that SkyRL calls `gspo`; its log-ratio is capped at 10.",
    ),
    "dapo": given(
        "`trainer.algorithm.eps_clip_high=0.28`, "
        "`trainer.algorithm.loss_reduction=prompt_mean`, "
        "`trainer.algorithm.dynamic_sampling.type=filter`, "
        f"{_SKY_NO_KL}",
        _SKY,
        "`prompt_mean` is the paper's mean, of each group; the default `token_mean` is "
        "the batch's. `generator.apply_overlong_filtering` masks truncated answers.",
    ),
    "cispo": given(
        "`trainer.algorithm.policy_loss_type=cispo`, "
        "`trainer.algorithm.cispo.cispo_eps_clip_low=1`, "
        f"`trainer.algorithm.cispo.cispo_eps_clip_high=4` (cap − 1), {_SKY_NO_KL}",
        _SKY,
        "Both bounds are counted from 1. The defaults, 0 and 5, raise every ratio "
        "below 1 to 1 and cap at 6.",
    ),
    "sapo": given(
        "`trainer.algorithm.policy_loss_type=sapo`, `trainer.algorithm.sapo.tau_pos=1`"
        ", `trainer.algorithm.sapo.tau_neg=1.05`, "
        f"`trainer.algorithm.loss_reduction=sequence_mean`, {_SKY_NO_KL}",
        _SKY,
        "The mean is over all tokens by default, which brings a warning.",
    ),
    "dppo_tv": _sky_dppo("tv", 0.2),
    "dppo_kl": _sky_dppo("kl", 0.05),
    "glm5": given(
        "`trainer.algorithm.policy_loss_type=rollout_is`, "
        "`trainer.algorithm.eps_clip_low=0.2`, `trainer.algorithm.eps_clip_high=0.2`, "
        f"{_SKY_NO_KL}",
        f"{_SKY}, NovaSky-AI/SkyRL#1314",
    ),
    **_absent(
        "gmpo rspo ipo vespo luspo minirl dro kimi",
        "`PolicyLossType` is regular, dual_clip, gspo, cispo, rollout_is, clip_cov, "
        "kl_cov, sapo, cross_entropy, importance_sampling or dppo.",
        _SKY,
    ),
}

# ---------------------------------------------------------------------------
# ROLL
# ---------------------------------------------------------------------------
_ROLL_LOSS = "alibaba/ROLL/roll/pipeline/rlvr/actor_worker.py@4dc7f5b3b2"
_ROLL_PPO = "alibaba/ROLL/roll/configs/base_config.py@51e53586d8"
_ROLL_RLVR = "alibaba/ROLL/roll/pipeline/rlvr/rlvr_config.py@4dc7f5b3b2"
_ROLL_MEANS = "alibaba/ROLL/roll/utils/functionals.py@41422373c1"
_ROLL_PAGES = "https://alibaba.github.io/ROLL/docs/UserGuide/algorithms/"
_ROLL_VARIANTS = f"{_ROLL_PAGES}offpolicy_setting (2026-11)"
_ROLL = {
    "reinforce": given(
        "`adv_estimator: reinforce`, `norm_mean_type: group`, `pg_variant: vanilla`, "
        "`actor_train.worker_cls: roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker`",
        f"{_ROLL_VARIANTS}, {_ROLL_PAGES}Reinforce_Plus_Plus (2026-11), {_ROLL_PPO}",
        "The baseline is the group's mean, not the mean of the others. With `batch` "
        "for mean and std the documentation calls it Reinforce++.",
    ),
    "ppo": given(
        "`adv_estimator: gae`, `pg_clip: 0.2`, `lambd: 0.95`, `dual_clip_loss: false`",
        f"{_ROLL_PPO}, {_ROLL_LOSS}, {_ROLL_PAGES}PPO (2026-11)",
        "The documentation's example turns the dual clip on; its bound is "
        "1 + 2 `pg_clip`.",
    ),
    "grpo": given(
        "`adv_estimator: grpo`, `loss_agg_mode: seq-mean-token-mean`, "
        "`use_kl_loss: true`, `kl_loss_coef: 0.04`, `dual_clip_loss: false`",
        f"{_ROLL_PPO}, {_ROLL_LOSS}, {_ROLL_MEANS}, {_ROLL_PAGES}GRPO (2026-11)",
        "k3 is clamped at ±10. The documentation's example whitens the advantages "
        "once more and turns the dual clip on.",
    ),
    "dr_grpo": given(
        "`adv_estimator: reinforce`, `norm_mean_type: group`, `norm_std_type: null`, "
        "`loss_agg_mode: seq-mean-token-sum-norm`",
        f"{_ROLL_PPO}, {_ROLL_MEANS}",
        "`adv_estimator: grpo` sets the std back to the group's. The divisor is the "
        "mask's width, and responses are summed, not averaged.",
    ),
    "gspo": given(
        "`importance_sampling: seq`, `loss_agg_mode: seq-mean-token-mean`, "
        "`use_pg_clip_range: true`, `pg_clip_low: 3e-4`, `pg_clip_high: 4e-4`, "
        "`adv_estimator: grpo`, `dual_clip_loss: false`",
        f"{_ROLL_LOSS}, {_ROLL_RLVR}, {_ROLL_PPO}, {_ROLL_PAGES}GSPO (2026-11)",
        "The documentation's example names no narrow clip and turns the dual clip on.",
    ),
    **_absent(
        "gspo_token",
        "`importance_sampling` is `token` or `seq`.",
        f"{_ROLL_RLVR}, {_ROLL_LOSS}",
    ),
    "dapo": given(
        "`use_pg_clip_range: true`, `pg_clip_low: 0.2`, `pg_clip_high: 0.28`, "
        "`loss_agg_mode: token-mean`, `adv_estimator: grpo`, `dual_clip_loss: false`",
        f"{_ROLL_PPO}, {_ROLL_LOSS}, {_ROLL_RLVR}",
        "Clip and mean alone. `query_filter_config` and `max_len_mask` drop prompts "
        "and truncated answers; whether a batch is refilled was not read.",
    ),
    "cispo": given(
        "`pg_variant: cispo`, `cispo_epsilon_low`, `cispo_epsilon_high`, "
        "`actor_train.worker_cls: roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker`",
        _ROLL_VARIANTS,
        "The defaults are 0.1 and 0.1, far narrower than the paper's one-sided cap. "
        "The page does not say what the two numbers are counted from.",
    ),
    "dro": given(
        "`pg_variant: kimi15`, `kimi15_tau: 0.1`, "
        "`actor_train.worker_cls: roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker`",
        _ROLL_VARIANTS,
        "Named after Kimi k1.5, whose square is that of a whole answer; ROLL's is of "
        "each token.",
    ),
    **dict.fromkeys(
        [name for name in f"gmpo rspo sapo {_LATER}".split() if name != "dro"],
        Cell(
            "not found",
            "not found",
            "Not among the variants that the documentation lists (vanilla, ppo, tis, "
            "topr, cispo, kimi15); the file that holds them could not be read.",
            _ROLL_VARIANTS,
        ),
    ),
}

# ---------------------------------------------------------------------------
# ms-swift
# ---------------------------------------------------------------------------
_SWIFT = (
    "`swift/rlhf_trainers/grpo_trainer.py` and `swift/rlhf_trainers/args_mixin.py`, "
    "ms-swift 4.6.0"
)
_SWIFT_ADVANTAGE = f"`swift/rl_core/advantage.py`; {_SWIFT}"
_MS_SWIFT = {
    "reinforce": given(
        "`--rlhf_type grpo`, `--advantage_estimator rloo`",
        _SWIFT_ADVANTAGE,
        "PPO's clip stays around it, and the KL (β is 0.04 by default) goes into the "
        "reward. `reinforce_plus_plus` is the variant with the group's mean.",
    ),
    "ppo": given(
        "`--rlhf_type ppo`",
        "`swift/rlhf_trainers/ppo_trainer.py`, ms-swift 4.6.0",
        "It is TRL's PPOTrainer, of a TRL below 1.0.",
    ),
    "grpo": given(
        "`--rlhf_type grpo`, `--loss_type grpo`, `--epsilon 0.2`, `--beta 0.04`",
        _SWIFT,
        "These are the defaults. k3 is clamped at ±10.",
    ),
    "dr_grpo": given(
        "`--rlhf_type grpo`, `--loss_type dr_grpo`, `--scale_rewards none`, `--beta 0`",
        _SWIFT_ADVANTAGE,
    ),
    "gspo": given(
        "`--rlhf_type grpo`, `--importance_sampling_level sequence`, "
        "`--loss_type grpo`, `--epsilon 3e-4`, `--epsilon_high 4e-4`, `--beta 0`",
        _SWIFT,
    ),
    "gspo_token": given(
        "`--rlhf_type grpo`, `--importance_sampling_level sequence_token`, "
        "`--loss_type grpo`, `--epsilon 3e-4`, `--epsilon_high 4e-4`, `--beta 0`",
        _SWIFT,
        "Refused together with Liger's kernel.",
    ),
    "dapo": given(
        "`--rlhf_type grpo`, `--loss_type dapo`, `--epsilon_high 0.28`, "
        "`--dynamic_sample true`, `--reward_funcs soft_overlong`, "
        "`--soft_cache_length`, `--beta 0`",
        f"{_SWIFT}; `swift/arguments/rlhf_args.py`",
        "The token mean is the batch's; the paper's is each group's. After "
        "`max_resample_times`, 3, it stops refilling.",
    ),
    "cispo": given(
        "`--rlhf_type grpo`, `--loss_type cispo`, `--epsilon_high 5.0` (the cap "
        "itself), `--beta 0`",
        _SWIFT,
        "There is no lower bound. Left out, `epsilon_high` falls back to `epsilon`, "
        "0.2, and every larger ratio becomes 0.2.",
    ),
    "sapo": given(
        "`--rlhf_type grpo`, `--loss_type sapo`, `--tau_pos 1.0`, `--tau_neg 1.05`, "
        "`--beta 0`",
        _SWIFT,
    ),
    **_absent(
        f"gmpo rspo {_LATER}",
        "`--loss_type` is grpo, bnpo, dr_grpo, dapo, cispo, sapo, real or fipo; the "
        "loss raises on another.",
        _SWIFT,
    ),
}

# ---------------------------------------------------------------------------
# Unsloth
# ---------------------------------------------------------------------------
_ZOO = "`unsloth_zoo/rl_replacements.py`, unsloth_zoo 2026.10.9"
_PATCH = "`unsloth/models/rl.py`, Unsloth 2026.10.9"
_UNSLOTH_GSPO = (
    "https://unsloth.ai/docs/zh/kai-shi-shi-yong/reinforcement-learning-rl-guide/"
    "advanced-rl-documentation/gspo-reinforcement-learning"
)
_UNSLOTH = {
    "reinforce": given(
        "`RLOOTrainer` of TRL",
        f"{_PATCH}; `unsloth/models/rl_replacements.py`",
        "Unsloth speeds up TRL's trainer; the loss is TRL's.",
    ),
    "ppo": given(
        "`trl.experimental.ppo.PPOTrainer`",
        _PATCH,
        "Only with a TRL that still has it: Unsloth takes TRL from 0.18.2 to 1.15.0.",
    ),
    "grpo": given(
        '`loss_type="grpo"`, `epsilon=0.2`, `beta=0.04`, '
        "`use_bias_correction_kl=False`",
        _ZOO,
        "TRL's names, a loss of its own. k3 is clamped at ±10.",
    ),
    "dr_grpo": given('`loss_type="dr_grpo"`, `scale_rewards="none"`, `beta=0`', _ZOO),
    "gspo": given(
        '`importance_sampling_level="sequence"`, `loss_type="grpo"`, `epsilon=3e-4`, '
        "`epsilon_high=4e-4`, `beta=0`",
        f"{_ZOO}; the guide: {_UNSLOTH_GSPO} (2026-11)",
        'Unsloth\'s guide has `loss_type="dr_grpo"` beside it, which is not the '
        "paper's mean.",
    ),
    "dapo": given(
        '`loss_type="dapo"`, `epsilon_high=0.28`, `beta=0`',
        _ZOO,
        "No dynamic sampling was found. The token mean is the batch's.",
    ),
    "cispo": given(
        '`loss_type="cispo"`, `epsilon_high=5.0` (the cap itself), `beta=0`',
        _ZOO,
        "There is no lower bound.",
    ),
    "sapo": given(
        '`loss_type="sapo"`, `sapo_temperature_pos=1.0`, `sapo_temperature_neg=1.05`, '
        "`beta=0`",
        _ZOO,
    ),
    "vespo": given('`loss_type="vespo"`, `beta=0`', _ZOO, "(k, λ) are TRL's defaults."),
    "luspo": given(
        '`loss_type="luspo"`, `importance_sampling_level="sequence"`, '
        "`epsilon=2e-3`, `epsilon_high=2.5e-3`, `beta=0`",
        _ZOO,
    ),
    "minirl": _partly(
        '`scale_rewards="none"`, `epsilon=0.2`, `epsilon_high=0.27`, `beta=0`',
        _ZOO,
        "Advantage and clip: whether `luspo` sums at the level of tokens was not read.",
    ),
    **_absent(
        "gspo_token", "`importance_sampling_level` is `token` or `sequence`.", _ZOO
    ),
    **_absent(
        "gmpo rspo dppo_tv dppo_kl ipo glm5 dro kimi",
        "`loss_type` is grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo or vespo, and "
        "TRL's GMPO trainer is not among those that it patches.",
        f"{_ZOO}; {_PATCH}",
    ),
}

READ = {
    "OpenRLHF": _OPENRLHF,
    "NeMo-RL": _NEMO_RL,
    "slime": _SLIME,
    "prime-rl": _PRIME_RL,
    "SkyRL": _SKYRL,
    "ROLL": _ROLL,
    "ms-swift": _MS_SWIFT,
    "Unsloth": _UNSLOTH,
}
