"""Sixteen claims of the papers, one of an engine, and studies: the runs they take.

A claim names its question, source, arms, outcome and the smallest effect that would
matter before it is run. Its parts, and the rule that judges it, are in `effects`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from experiments.effects import (  # noqa: F401 - chapters import them from here
    BROKEN,
    RATES,
    SEEDS,
    STARTS,
    Best,
    Breaking,
    Claim,
    Contrast,
    Mean,
    Study,
    Sum,
    breaking_rates,
    of_cell,
    sweep,
)
from experiments.grid import FIVE, OLD, STALE, TEN, TWENTY, UPDATES, Cell, World
from experiments.outcomes import GOALS
from experiments.statistics import estimate


def _cell(
    arm: str, updates: int, rate: float = 2e-4, world: World = "sums", **changed: Any
) -> Cell:
    return Cell(arm, rate, updates, world, tuple(sorted(changed.items())))


def _on_moe(arm: str, rate: float = 6e-4, **changed: Any) -> Cell:
    return _cell(arm, 16, rate, "moe", **changed)


def _pair(
    outcome: str,
    arms: tuple[str, str],
    updates: int,
    rate: float = 2e-4,
    scale: str = "difference",
    **cell: Any,
) -> Contrast:
    """Contrast an arm with another in one cell."""
    one, other = (_cell(arm, updates, rate, **cell) for arm in arms)
    return Contrast(outcome, one, other, scale)


def _sweeps(arms: Sequence[str], updates: int, **where: Any) -> tuple[Cell, ...]:
    """Return the cells of these arms at every rate; see `sweep`."""
    return tuple(c for arm in arms for c in sweep(arm, updates, **where).values())


Premise = Callable[[pd.DataFrame], str]


def _requires(
    text: str, outcome: str, cell: Cell, low: float = -math.inf, high: float = math.inf
) -> Premise:
    """Require that an outcome's mean lies in a range; else `text` says what it is."""

    def premise(table: pd.DataFrame) -> str:
        mean = of_cell(table, cell)[outcome].mean()
        return "" if low <= mean <= high else text.format(mean)

    return premise


def _reached(goal: str, *cells: Cell) -> Premise:
    """Require that half of the runs reach a goal; else the time to it means nothing."""

    def premise(table: pd.DataFrame) -> str:
        runs = pd.concat([of_cell(table, cell) for cell in cells])
        share = (runs[f"to_{goal}"] <= runs["rollouts"]).mean()
        if share >= 0.5:
            return ""
        return f"only {share:.0%} of the runs reach a reward of {GOALS[goal]}"

    return premise


def _both(one: Premise, other: Premise) -> Premise:
    return lambda table: one(table) or other(table)


FAST: dict[str, Any] = {"router_rate": 100.0}
"""At the others' rate 2 to 4 % of the experts change. In a pilot of one run per value,
30 times that rate moved 7 % over the first ten rollouts, 100 times 11 %."""
MOVED = _on_moe("GRPO", 2e-4, **FAST)
GRPO_FALLS = _both(
    _requires(  # the share in GSPO §5.3
        "{:.0%} of the experts change, the claim is about 10% or more",
        "expert_change",
        MOVED,
        low=0.10,
    ),
    _requires(
        "GRPO does not collapse, it earns {:.2f}", "reward", MOVED, high=0.5 - 1e-12
    ),
)
"""Replay is claimed to keep GRPO from collapsing, to a reward below 0.5. This was
declared after the runs, in none of which GRPO collapsed."""
SIXTY_FOUR = Cell("GRPO", 2e-4, 4, answers=True)
ROOM_TO_RISE = _requires(
    "pass@64 is {:.2f} before RL and has no room to rise",
    "pass@64 before",
    SIXTY_FOUR,
    high=0.95,
)
WHOLE_DAPO: dict[str, Any] = {"dynamic_sampling": True, "overlong_share": 0.2}
WITHOUT = {
    "clip-higher": _cell("DAPO 0.20", 4, **WHOLE_DAPO),
    "dynamic sampling": _cell("DAPO", 4, overlong_share=0.2),
    "token mean": _cell("DAPO", 4, **WHOLE_DAPO, normaliser="seq_mean_token_mean"),
    "overlong punishment": _cell("DAPO", 4, dynamic_sampling=True),
}
DAPO, GRPO = _cell("DAPO", 4, **WHOLE_DAPO), _cell("GRPO", 4)
WIDE = ("GMPO", "GRPO (0.67, 1.49)")
"""Methods with clips of one width."""


def _against_grpo(outcome: str, rate: float) -> Contrast:
    """Contrast GSPO at its published clip with GRPO, with K = 4, as a quotient."""
    return _pair(outcome, ("GSPO 3e-4", "GRPO"), 4, rate, "log2")


def _rates(arm: str) -> tuple[Cell, ...]:
    """Return an arm's cells with K = 4, at learning rates an octave apart."""
    return tuple(_cell(arm, 4, rate) for rate in (2e-4, 4e-4, 8e-4))


def _trusting(arm: str, sampler: str = "bfloat16") -> Contrast:
    """Contrast taking such a sampler's log-probs as π_old's with recomputing them."""
    recomputed = _cell(arm, 16, rollout_dtype=sampler)
    trusted = _cell(arm, 16, rollout_dtype=sampler, trust_sampler=True)
    return Contrast("reward", trusted, recomputed)


def _grpo_loses(table: pd.DataFrame) -> str:
    """Require that GRPO loses reward, for GSPO to tolerate. Declared after the runs."""
    lost = -estimate(_trusting("GRPO").pairs(table)).effect
    return "" if lost >= 0.03 else f"GRPO loses {lost:.3f} of reward by it"


def _replaying(**sampler: Any) -> Contrast:
    """Contrast the KL between such a sampler and the trainer with and without R3."""
    r3, plain = _on_moe("GRPO + R3", **sampler), _on_moe("GRPO", **sampler)
    return Contrast("sampling_kl", r3, plain, "log2")


def _threshold(delta: float) -> Cell:
    """Return DPPO-TV with one update per rollout and a sampler three rollouts late.

    prime-rl's test had up to three steps of staleness. The rate is from stored runs of
    GRPO alone: at 4e-4 it learns without breaking, and the careful habit's share rises
    by up to 0.16 in one update.
    """
    return _cell(f"DPPO-TV {delta:g}", 1, 4e-4, sampler_delay=3)


def _rare(arm: str) -> Cell:
    """Return a cell of the world with a rare careful habit, which the clip limits."""
    return _cell(arm, 16, world="rare")


MASKED = 0.01
"""The least share of tokens at which a mask or clip counts as acting. prime-rl#3244
reports about 0.02."""
CLIP_ACTS = _requires(
    "ε_high 0.20 clips {:.1%} of the tokens", "clipped", _rare("DAPO 0.20"), low=MASKED
)
MASK_ACTS = _both(
    _requires(
        "a threshold of 0.1 masks {:.1%} of the tokens",
        "masked",
        _threshold(0.1),
        low=MASKED,
    ),
    _reached("80", *map(_threshold, (0.1, 0.2))),
)
"""The narrow mask removes tokens while the habit is learned."""


CLAIMS = (
    Claim(
        1,
        "Clip-higher keeps entropy up",
        "Is entropy at the end higher with ε_high 0.28 than with 0.20?",
        "DAPO (2503.14476), §3.1, Fig. 2",
        _pair("entropy", ("DAPO", "DAPO 0.20"), 16, 1e-4, "log2"),
        "log2 of entropy, nats",
        smallest=math.log2(1.2),
        also=(_cell("DAPO 0.40", 16, 1e-4),),
    ),
    Claim(
        2,
        "Dynamic sampling learns in fewer rollouts",
        "Is the mean reward over all rollouts higher with it?",
        "DAPO (2503.14476), §3.2, Fig. 6",
        Contrast("area", DAPO, WITHOUT["dynamic sampling"]),
        "reward, over all rollouts",
        smallest=0.03,
        seeds=1,
        starts=TEN,
        decides="a second seed of each of the ten starts, about 0.1 core-hours",
    ),
    Claim(
        3,
        "DAPO's parts add up",
        "Does DAPO reach 0.95 with fewer answers than GRPO, which lacks all four?",
        "DAPO (2503.14476), Table 1",
        Contrast("samples_95", DAPO, GRPO, "log2"),
        "log2 of answers to 0.95",
        smallest=math.log2(1.2),
        seeds=2,
        sign=-1,
        premise=_reached("95", DAPO, GRPO),
        also=tuple(WITHOUT.values()),
    ),
    Claim(
        4,
        "The mean over responses lets answers grow",
        "Are answers longer at the end under 1/|o| than under the mean over tokens?",
        "DAPO (2503.14476), §3.3, Fig. 4",
        Contrast("length", GRPO, _cell("GRPO", 4, normaliser="token_mean")),
        "tokens",
        smallest=1.0,
        seeds=2,
    ),
    Claim(
        5,
        "Dr. GRPO keeps wrong answers short",
        "Are wrong answers shorter at the end under Dr. GRPO than under GRPO?",
        "Dr. GRPO (2503.20783), Fig. 5",
        _pair("wrong_length", ("Dr. GRPO", "GRPO"), 4),
        "tokens",
        smallest=1.0,
        sign=-1,
        also=(
            _cell("GRPO", 4, normaliser="constant"),
            _cell("Dr. GRPO", 4, normaliser="seq_mean_token_mean"),
        ),
    ),
    Claim(
        6,
        "GSPO learns faster than GRPO",
        "Is GSPO's mean reward over all rollouts higher, each at its best of three "
        "rates, GSPO at its published clip?",
        "GSPO (2507.18071), §5.1",
        Best("area", _rates("GSPO 3e-4"), _rates("GRPO")),
        "reward, over all rollouts",
        smallest=0.03,
        seeds=1,
        starts=TEN,
        decides="a second seed of each of the ten starts, about 0.2 core-hours",
    ),
    Claim(
        7,
        "GRPO on a MoE needs routing replay",
        "Where routing moves, does replay (R2) raise GRPO's reward?",
        "GSPO (2507.18071), §5.3",
        Contrast("reward", _on_moe("GRPO + R2", 2e-4, **FAST), MOVED),
        "reward",
        smallest=0.03,
        premise=GRPO_FALLS,
        also=(
            *(_on_moe(arm, 2e-4, router_rate=30.0) for arm in ("GRPO + R2", "GRPO")),
            *(_on_moe(arm) for arm in ("GRPO + R2", "GRPO")),
            _on_moe("GSPO 0.03", 2e-4, **FAST),
        ),
    ),
    Claim(
        8,
        "GSPO tolerates another engine's log-probs",
        "Does GSPO lose less than GRPO where a bfloat16 sampler is taken for π_old?",
        "GSPO (2507.18071), §5.4",
        Sum((_trusting("GSPO 3e-4"), _trusting("GRPO")), (1, -1)),
        "reward",
        smallest=0.03,
        premise=_grpo_loses,
        also=(*_trusting("GSPO 3e-4", "int8").cells, *_trusting("GRPO", "int8").cells),
    ),
    Claim(
        9,
        "CISPO needs half of DAPO's updates",
        "In how many rollouts does each reach 0.8, where the good habit is rare?",
        "MiniMax-M1 (2506.13585), Fig. 2",
        Contrast("to_80", _rare("CISPO 5"), _rare("DAPO"), "log2"),
        "log2 of rollouts to 0.8",
        smallest=0.5,
        seeds=2,
        sign=-1,
        premise=_reached("80", _rare("CISPO 5"), _rare("DAPO")),
    ),
    Claim(
        10,
        "GMPO's log-ratios keep to a narrower range",
        "Is their range narrower than under GRPO with an equally wide clip?",
        "GMPO (2507.20673), Fig. 1",
        _pair("spread", WIDE, 16, 6e-4, "log2"),
        "log2 of q99 − q01, nats",
        smallest=math.log2(1.2),
        seeds=2,
        sign=-1,
    ),
    Claim(
        11,
        "Replaying the sampler's routing lowers the mismatch",
        "How much smaller is the KL between sampler and trainer under R3?",
        "R3 (2510.11370)",
        _replaying(rollout_dtype="bfloat16"),
        "log2 of the KL",
        smallest=0.5,
        sign=-1,
        also=(
            *_replaying(rollout_dtype="int8").cells,
            *_replaying(router_noise=0.2).cells,
            *(_on_moe(arm) for arm in ("GRPO + R3", "GRPO + R2")),
        ),
    ),
    Claim(
        12,
        "RSPO beats GMPO on a MoE",
        "Is its reward higher than GMPO's?",
        "RSPO (2510.23027)",
        _pair("reward", ("RSPO", "GMPO"), 16, 6e-4, world="moe"),
        "reward",
        smallest=0.007,
        decides="nothing within reach: two names of one algorithm differ here by up "
        "to 0.085, twelve times what is claimed",
        also=(_on_moe("GSPO 0.03"), _on_moe("GRPO")),
    ),
    Claim(
        13,
        "SAPO is stable where GSPO and GRPO are not",
        "Does SAPO at its published τ stand a higher learning rate than GSPO?",
        "SAPO (2511.20347), Fig. 4",
        Breaking("SAPO 1.0", "GSPO 0.03", 16),
        "octaves of the rate",
        smallest=0.5,
        also=_sweeps(("GRPO",), 16),
        seeds=2,
    ),
    Claim(
        14,
        "τ_neg above τ_pos is the better order",
        "Does (8.8, 17.6) earn more than (17.6, 8.8), the same widths exchanged, at a "
        "learning rate at which the gates act?",
        "SAPO (2511.20347), Fig. 5",
        _pair("reward", ("SAPO 8.8, neg 2", "SAPO 17.6, neg ½"), 16, 4e-4),
        "reward",
        smallest=0.03,
        seeds=1,
        starts=TEN,
        decides="a second seed of each of the ten starts, about 0.1 core-hours",
    ),
    Claim(
        15,
        "Log-ratios vary little within a response",
        "Is Var_i below 0.02 in more than half of the responses of SAPO's rollouts?",
        "SAPO (2511.20347), assumption A2",
        Mean("within_small", _cell("SAPO 1.0", 4), less=0.5),
        "share of responses",
        smallest=0.1,
        seeds=2,
        also=(_cell("SAPO 1.0", 16), _on_moe("SAPO 1.0", 2e-4)),
    ),
    Claim(
        16,
        "RL raises maj@k and not pass@k",
        "Does maj@8 gain more than pass@64?",
        "DeepSeekMath (2402.03300), §5.2.2",
        Mean("maj@8 gained", SIXTY_FOUR, less="pass@64 gained"),
        "share of problems",
        smallest=0.03,
        seeds=2,
        premise=ROOM_TO_RISE,
    ),
    Claim(
        17,
        "Half the threshold starves the decisive token",
        "Does DPPO-TV take more rollouts to 0.8 with a threshold of 0.1 than of 0.2?",
        "prime-rl (#3236 of 2026-08-11, taken back by #3244 a day later)",
        Contrast("to_80", _threshold(0.1), _threshold(0.2), "log2"),
        "log2 of rollouts to 0.8",
        smallest=math.log2(1.2),
        seeds=2,
        premise=MASK_ACTS,
        starts=TWENTY,
        decides="a third seed of each of the twenty starts, about 0.1 core-hours",
    ),
)
PAPERS = CLAIMS[:16]
"""The claims of papers. The last of `CLAIMS` is from an engine's change log."""
_OF = {claim.number: claim for claim in CLAIMS}
SECOND = (
    replace(
        _OF[1],
        number="1b",
        title="Clip-higher keeps entropy up, where the careful habit is rare",
        effect=Contrast("entropy", _rare("DAPO"), _rare("DAPO 0.20"), "log2"),
        premise=CLIP_ACTS,
        seeds=2,
        starts=TEN,
        decides="about a hundred starts, 400 runs, about 2 core-hours",
        also=(_rare("DAPO 0.40"),),
    ),
    Claim(
        "2b",
        "Dynamic sampling needs fewer rollouts, to 0.95",
        "Does training reach a reward of 0.95 in fewer rollouts with it?",
        _OF[2].source,
        Contrast("to_95", DAPO, WITHOUT["dynamic sampling"], "log2"),
        "log2 of rollouts to 0.95",
        smallest=math.log2(1.2),
        sign=-1,
        premise=_reached("95", DAPO, WITHOUT["dynamic sampling"]),
        decides="claim 2 asks it of ten starts",
    ),
    replace(
        _OF[3],
        number="3b",
        title="DAPO's parts add up, counted in rollouts",
        question="Does DAPO reach 0.95 in fewer rollouts than GRPO, which lacks all?",
        effect=Contrast("to_95", DAPO, GRPO, "log2"),
        unit="log2 of rollouts to 0.95",
        seeds=SEEDS,
        also=(),
    ),
    Claim(
        "6b",
        "GSPO clips more than GRPO",
        "Is the share of clipped tokens larger under GSPO at its published clip?",
        "GSPO (2507.18071), §5.2",
        _against_grpo("clipped", 4e-4),
        "log2 of tokens clipped",
        smallest=1.0,
    ),
    Claim(
        "6c",
        "GSPO learns faster than GRPO, to 0.8 at 4e-4",
        "Does GSPO at its published clip reach 0.8 in fewer rollouts than GRPO?",
        "GSPO (2507.18071), §5.1 and §5.2",
        _against_grpo("to_80", 4e-4),
        "log2 of rollouts to 0.8",
        smallest=math.log2(1.2),
        sign=-1,
        premise=_reached("80", *_against_grpo("to_80", 4e-4).cells),
        decides="claim 6 asks it of ten starts",
        also=tuple(
            _cell(arm, 4, rate)
            for arm in ("GSPO 3e-4", "GRPO")
            for rate in (2e-4, 8e-4)
        ),
    ),
    replace(
        _OF[10],
        number="10b",
        title="GMPO's log-ratios keep to a narrower range, in the first three rollouts",
        question="Is it narrower on data that all methods share?",
        effect=_pair("spread", WIDE, 16, 6e-4, "log2", rollouts=3),
        seeds=SEEDS,
        starts=TEN,
        decides="ten more starts, 80 runs of three rollouts, under 0.1 core-hours",
    ),
    replace(
        _OF[13],
        number="13b",
        title="SAPO is stable where GSPO is not, K = 4",
        effect=Breaking("SAPO 1.0", "GSPO 0.03", 4),
        seeds=1,
        starts=TWENTY,
        decides="a second seed of each of the twenty starts, about 0.6 core-hours",
        also=(),
    ),
    replace(
        _OF[15],
        number="15b",
        title="Log-ratios vary little within a response, sorting, K = 16",
        effect=Mean("within_small", _cell("SAPO 1.0", 16, world="sorting"), less=0.5),
        seeds=1,
        decides="ten starts, 5 more runs, about 0.1 core-hours",
        also=(),
    ),
    replace(
        _OF[15],
        number="15c",
        title="Log-ratios vary little within a response, sorting, K = 4",
        effect=Mean("within_small", _cell("SAPO 1.0", 4, world="sorting"), less=0.5),
        seeds=1,
        starts=FIVE,
        decides="ten starts, 5 more runs, under 0.1 core-hours",
        also=(),
    ),
    replace(
        _OF[14],
        number="14b",
        title="τ_neg above τ_pos is the better order, at 2e-4",
        question="Does (8.8, 17.6) earn more than (17.6, 8.8), the same exchanged?",
        effect=_pair("reward", ("SAPO 8.8, neg 2", "SAPO 17.6, neg ½"), 16),
        seeds=SEEDS,
        starts=OLD,
        decides="nothing: at this rate all widths learn alike",
        also=tuple(
            _cell(f"SAPO 1.0{order}", 16) for order in ("", ", reversed", ", equal")
        ),
    ),
    replace(
        _OF[17],
        number="17b",
        title="Half the threshold starves the decisive token, the first forty runs",
        seeds=2,
        starts=OLD,
        decides="claim 17, from twenty starts that everybody has",
        also=(_threshold(1.0),),
    ),
)
"""Second outcomes of claims. Each has a verdict of its own, and is not counted among
the claims."""


LATE, DELAYS = ("GRPO", "GSPO 3e-4", "CISPO 5", "SAPO 1.0"), (0, 1, 2, 4, 8)
"""Methods that are run with a late sampler, and its delays in rollouts."""


def behind(arm: str, delay: int, cap: float | None) -> Cell:
    """Return a cell whose sampler is late by `delay` rollouts, with K = 4.

    `cap` truncates the sampler's importance weights, which are 1 without a delay.
    """
    if delay == 0:
        return _cell(arm, 4, 4e-4)
    weighed: dict[str, Any] = {"token_truncate": cap} if cap else {}
    return _cell(arm, 4, 4e-4, sampler_delay=delay, **weighed)


BREAKING = (
    "GRPO (0.67, 1.49)",
    "GSPO 0.03",
    "DAPO",
    "CISPO 5",
    "GMPO",
    "SAPO 1.0",
    "SAPO 8.8",
    "one-sided 8.8",
    "two-sided clip",
)
"""The methods of the central figure, which are compared with GRPO."""
SOFT, OTHER = ("one-sided", "SAPO"), ("half open", "bad at ½", "bad at 0")
GATES = ("one-sided 8.8", "SAPO 8.8", "two-sided clip")
BAD_GATES = ("SAPO 8.8, neg ½", "SAPO 8.8, neg 2")
LOSING = (
    *("PPO", "Dr. GRPO"),
    *BREAKING[:-1],  # the last one is left to an exercise of chapter 10
    *BAD_GATES,
    *("one-sided 8.8, Â > 0", "one-sided 8.8, Â < 0"),
)
"""The arms that are compared with GRPO at the hard rate on the dense model."""
ROUTED = (
    *("GRPO + R2", "GRPO + R3", "GSPO 0.03", "GMPO", "SAPO 1.0"),
    *("RSPO", "RSPO, gradient through γ"),
)
NOISY = ("GSPO 0.03", "GRPO + R3", "GRPO + TIS", "GRPO + R3 + TIS")
STUDIES = {
    "breaking": Study(
        "At which learning rate does each method break?",
        tuple(
            cell
            for updates in UPDATES
            for cell in _sweeps(("GRPO", *BREAKING), updates)
        ),
    ),
    "finding": Study(
        "Is it one-sidedness that keeps a skill under stale updates?",
        (
            *_sweeps(("GRPO", *GATES), 16),
            *_sweeps(("GRPO", *GATES), 16, optimizer="sgd"),
            *_sweeps([f"{gate} {tau}" for gate in SOFT for tau in (4.4, 17.6)], 16),
            *_sweeps([f"SAPO 8.8, {gate}" for gate in OTHER], 16),
        ),
    ),
    "stale": Study(
        "What is left of accuracy after stale updates, K = 16?",
        (
            *(_cell(arm, 16, STALE["hard"]) for arm in ("GRPO", *LOSING)),
            *(
                _cell(arm, 16, rate)
                for arm in ("SAPO 8.8", *BAD_GATES)
                for rate in STALE.values()
            ),
            *(
                _on_moe(arm, STALE[name])
                for arm in ("GRPO", *ROUTED)
                for name in ("mild", "hard")
            ),
            *(
                _on_moe(arm, STALE["mild"], router_noise=noise)
                for arm in ("GRPO", *NOISY)
                for noise in (0.2, 0.5)
            ),
        ),
        seeds=1,
    ),
    "delay": Study(  # in accuracy, since training rewards are those of the late sampler
        "What does a sampler cost that lags behind, and do truncated weights help?",
        tuple(
            behind(arm, delay, cap)
            for arm in LATE
            for delay in DELAYS
            for cap in (None, 2.0)
        ),
        seeds=1,
    ),
    "threshold": Study(
        "Does half of DPPO-TV's threshold cost anything without a late sampler?",
        (_cell("DPPO-TV 0.1", 4), _cell("DPPO-TV 0.2", 4)),
        seeds=1,
    ),
    "sorting": Study(
        "Does the order of methods carry over to a world of another kind?",
        _sweeps((*GATES, "GRPO", "GSPO 0.03", "SAPO 1.0"), 16, world="sorting"),
        seeds=1,
    ),
}
"""Runs that chapters show and that belong to no single claim."""
