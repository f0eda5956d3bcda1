"""What the adapters of TRL and of Liger share: Liger took TRL's names over."""

AVERAGED = {"seq_mean_token_mean": "grpo", "token_mean": "dapo", "constant": "dr_grpo"}
AVERAGED["seq_mean_token_sum"] = "luspo"
KL = {None: False, "k3": False, "unbiased_k3": True}
"""Its KL is k3; with `use_bias_correction_kl`, TRL's default, times the ratio."""


def bias_corrected(settings: dict) -> bool:
    """`use_bias_correction_kl` of a case; its KL must be one of theirs."""
    if settings.get("placement"):
        raise NotImplementedError("there is no router shift")
    if settings.get("kl") not in KL:
        raise NotImplementedError(f"there is no {settings['kl']}")
    return KL[settings.get("kl")]


def losses(asked):
    """(grpo, gspo, cispo, sapo, vespo): adapters over `asked`, which takes
    (inputs, settings, **arguments); its arguments have TRL's names."""

    def grpo(inputs, settings, **given):
        ours, averaged = settings["hyperparameters"], settings["normaliser"]
        if averaged not in AVERAGED:
            raise NotImplementedError(f"there is no {averaged}")
        if ours.get("dual_clip"):
            raise NotImplementedError("`delta` clips r where Â > 0, too")
        given |= {name: ours[name] for name in ("epsilon_low", "epsilon_high")}
        return asked(inputs, settings, loss_type=AVERAGED[averaged], **given)

    def gspo(inputs, settings):
        return grpo(inputs, settings, importance_sampling_level="sequence")

    def cispo(inputs, settings):
        ours = settings["hyperparameters"]
        if settings["normaliser"] != "token_mean" or ours["mask_epsilon_low"]:
            raise NotImplementedError("CISPO is averaged over tokens, and unmasked")
        cap = ours["max_ratio"]
        return asked(inputs, settings, loss_type="cispo", epsilon_high=cap)

    def sapo(inputs, settings):
        ours = settings["hyperparameters"]
        if settings["normaliser"] != "seq_mean_token_mean":
            raise NotImplementedError("SAPO is averaged over responses")
        tau = {f"sapo_temperature_{s}": ours[f"tau_{s}"] for s in ("pos", "neg")}
        return asked(inputs, settings, loss_type="sapo", **tau)

    def vespo(inputs, settings):
        ours = settings["hyperparameters"]
        if settings["normaliser"] != "token_mean":
            raise NotImplementedError("VESPO is averaged over tokens")
        given = {f"vespo_{name}": value for name, value in ours.items()}
        return asked(inputs, settings, loss_type="vespo", **given)

    return grpo, gspo, cispo, sapo, vespo
