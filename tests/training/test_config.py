# Wrong values


WRONG = {
    "rollouts": [0, -1, 1.5, "3"],
    "prompts_per_rollout": [0, 2.0],
    "group_size": [0, None],
    "max_new_tokens": [0, "48"],
    "temperature": [0, -1.0, float("nan")],
    "minibatches": [0, 3],
    "epochs": [0, 0.5],
    "micro_batch_size": [0, -16],
    "learning_rate": [0, -1e-3, float("nan")],
    "warmup_updates": [-1],
    "weight_decay": [-0.1, float("nan")],
    "max_grad_norm": [0, -1.0],
    "entropy_bonus": [-0.1],
    "beta": [-0.1, float("nan")],
    "kl_in": ["Loss", None],
    "kl_estimator": ["k4", ""],
    "gamma": [-0.1, 1.1, float("nan")],
    "lam": [-0.1, 1.1],
    "critic_learning_rate": [0, -1.0],
    "value_clip": [0, -0.2],
    "eval_every": [0],
    "eval_problems": [0],
    "dtype": ["float16", torch.float32],
    "checkpoint_every": [0],
    "max_sampling_rounds": [0, 1.5],
    "overlong_share": [-0.1, 1.5, float("nan")],
    "rollout_dtype": ["float16", "bf16"],
    "router_noise": [-0.1, float("nan")],
    "max_rollout_weight": [0, -1.0, float("nan")],
    "replay": ["R1", "r3", True],
    "router_shift_floor": [0, 1.1, float("nan")],
    "placement": ["before", None],
    "router_aux_loss": [-1e-3],
}


WRONG |= {
    name: ["false", "no", 0, 1]
    for name in (
        "allow_on_policy dynamic_sampling overlong_filtering router_shift detach_shift"
    ).split()
}


LATER = {"seed", "hyperparameters", "device"}
"""No value of these is wrong by itself."""


def test_every_setting_has_wrong_values_here():
    assert WRONG.keys() | LATER == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]]
)
def test_a_wrong_setting_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        TrainConfig(**{name: value})


@pytest.mark.parametrize(
    ("dtype", "rollout_dtype"), [("float32", "float64"), ("float64", "bfloat16")]
)
def test_a_rollout_dtype_that_could_not_act_is_refused(dtype, rollout_dtype):
    with pytest.raises(ValueError, match="only bfloat16 and float32 can differ"):
        TrainConfig(dtype=dtype, rollout_dtype=rollout_dtype)


# What a paper prescribes


def test_the_settings_of_a_paper_hold_unless_they_are_given():
    dapo, grpo = ALGORITHMS["dapo"], ALGORITHMS["grpo"]
    default = TrainConfig().completed(dapo)
    assert (default.dynamic_sampling, default.overlong_share) == (True, 0.2)
    own = TrainConfig(dynamic_sampling=False, overlong_share=0.0).completed(dapo)
    assert (own.dynamic_sampling, own.overlong_share) == (False, 0.0)
    other = TrainConfig().completed(grpo)
    assert (other.dynamic_sampling, other.overlong_share) == (False, 0.0)
    assert prepared("dapo").config.dynamic_sampling is True
