"""What the adapters of TRL and of Liger share: Liger took TRL's names over."""

AVERAGED = {"seq_mean_token_mean": "grpo", "token_mean": "dapo", "constant": "dr_grpo"}
KL = {"k3": False, "unbiased_k3": True}
"""Its KL is k3; with `use_bias_correction_kl`, TRL's default, times the ratio."""


def bias_corrected(settings: dict) -> bool:
    """`use_bias_correction_kl` of a case; its KL must be one of theirs."""
    if settings.get("placement"):
        raise NotImplementedError("there is no router shift")
    kl = settings.get("kl")
    if kl and kl not in KL:
        raise NotImplementedError(f"there is no {kl}")
    return KL.get(kl, False)


def losses(asked):
    """(grpo, gspo, cispo, sapo): adapters over `asked(inputs, settings, **arguments)`,
    whose arguments have TRL's names."""

    def grpo(inputs, settings, **own):
        given, averaged = settings["hyperparameters"], settings["normaliser"]
        if averaged not in AVERAGED:
            raise NotImplementedError(f"there is no {averaged}")
        if given.get("dual_clip"):
            raise NotImplementedError("`delta` clips r where Â > 0, too")
        own |= {name: given[name] for name in ("epsilon_low", "epsilon_high")}
        return asked(inputs, settings, loss_type=AVERAGED[averaged], **own)

    def gspo(inputs, settings):
        return grpo(inputs, settings, importance_sampling_level="sequence")

    def cispo(inputs, settings):
        given = settings["hyperparameters"]
        if settings["normaliser"] != "token_mean" or given["mask_epsilon_low"]:
            raise NotImplementedError("CISPO is averaged over tokens, and unmasked")
        cap = given["max_ratio"]
        return asked(inputs, settings, loss_type="cispo", epsilon_high=cap)

    def sapo(inputs, settings):
        given = settings["hyperparameters"]
        if settings["normaliser"] != "seq_mean_token_mean":
            raise NotImplementedError("SAPO is averaged over responses")
        tau = {f"sapo_temperature_{s}": given[f"tau_{s}"] for s in ("pos", "neg")}
        return asked(inputs, settings, loss_type="sapo", **tau)

    return grpo, gspo, cispo, sapo
