"""The command line: `python -m refimpl {train,warm-start,curves,bench,stress}`."""

import argparse
import ast
import sys
from dataclasses import fields
from pathlib import Path

from refimpl import algorithms, curves
from refimpl.experiments import stress
from refimpl.algorithms import ALGORITHMS, nearest
from refimpl.models import PRESETS, load
from refimpl.tasks import Arithmetic, rare_careful
from refimpl.trainer import (
    DynamicSamplingError,
    StalenessError,
    TrainConfig,
    train,
)
from refimpl.sft import WarmStart, warm_start

EXPECTED = (
    ValueError,
    TypeError,
    StalenessError,
    DynamicSamplingError,
    FloatingPointError,
)
WORLDS = {"arithmetic": Arithmetic, "rare-careful": rare_careful}


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        args.run(args)
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        where = getattr(args, "checkpoint_dir", None)
        again = f"; continue with --checkpoint-dir {where} --resume" if where else ""
        print(f"interrupted: {stop}{again}", file=sys.stderr)
        return 130
    return 0


def run_train(args) -> None:
    algorithm = algorithms.get(args.algorithm)
    settings = parse_settings(algorithm, args.set)
    for name in ("seed", "device", "dtype", "rollouts"):  # a flag beats --set
        if getattr(args, name) is not None:
            settings[name] = getattr(args, name)
    config = TrainConfig(**settings)
    config.check(algorithm)
    world = WORLDS[args.world]()
    if args.model is not None:
        model, tokenizer = load(args.model)
    else:
        start = WarmStart(preset=args.preset, world=world)
        model, tokenizer, _ = warm_start(start, device=config.device)
    history = train(
        algorithm,
        config=config,
        model=model,
        tokenizer=tokenizer,
        task=world,
        checkpoint_dir=args.checkpoint_dir,
        resume=args.resume,
    )
    if args.history is not None:
        history.to_csv(args.history)
    if args.save is not None:
        history.model.save_pretrained(args.save)
        tokenizer.save_pretrained(args.save)
    last = history.rows[-1]
    print(
        f"{algorithm.name}  seed {config.seed}  rollouts {len(history)}  "
        f"seconds {sum(history['step_time']):.1f}  reward {last['reward']:.2f}  "
        f"accuracy {history.accuracy:.2f}"
    )


def run_warm_start(args) -> None:
    settings = WarmStart(preset=args.preset, world=WORLDS[args.world](), seed=args.seed)
    _, _, losses = warm_start(settings, device=args.device or "cpu", fresh=args.fresh)
    print(f"{settings.folder()}  final loss {losses[-1]:.3f}")


def run_curves(args) -> None:
    algorithm = algorithms.get(args.algorithm)
    settings = dict(map(_parse_setting, args.set))
    algorithm.check_hyperparameters(settings)
    found = {
        f"{algorithm.name} A{'>' if sign > 0 else '<'}0": curves.curve(
            algorithm, sign, **settings
        )
        for sign in (1, -1)
    }
    curves.to_csv(args.out, found)
    print(f"wrote {args.out}")


def run_bench(args) -> None:
    from refimpl.experiments.bench import bench  # here: it pulls in more than training needs

    for name in args.algorithms:
        algorithms.get(name)
    bench(args.seeds, args.out, args.chapters, args.algorithms)


def run_stress(args) -> None:
    stress.stress(args.out, args.arms, args.settings, args.seeds, args.workers)
    print(f"wrote {args.out}")


def parse_settings(algorithm: algorithms.Algorithm, pairs: list[str]) -> dict:
    """`name=value` pairs → arguments of `TrainConfig`, hyperparameters set apart.

    Raises `TypeError` with the nearest name if neither knows one.
    """
    own = {f.name for f in fields(TrainConfig)} - {"hyperparameters"}
    settings, hyperparameters = {}, {}
    for name, value in map(_parse_setting, pairs):
        if name in own:
            settings[name] = value
        elif name in algorithm.names or name == "max_length":  # Dr. GRPO's constant
            hyperparameters[name] = value
        else:
            known = [*algorithm.names, *sorted(own)]
            raise TypeError(
                f"{name!r} is neither a setting of training nor a hyperparameter of "
                f"{algorithm.name}{nearest(name, known)}; {algorithm.name} has: "
                f"{', '.join(algorithm.names)}"
            )
    return {**settings, "hyperparameters": hyperparameters}


def _parse_setting(pair: str) -> tuple[str, object]:
    name, equals, text = pair.partition("=")
    if not equals or not text:
        raise ValueError(f"--set takes name=value, got {pair!r}")
    if text.lower() in ("true", "false"):
        return name, text.lower() == "true"
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m refimpl", description=__doc__)
    commands = parser.add_subparsers(required=True)

    train_ = commands.add_parser("train", help="train a policy")
    train_.add_argument("--algorithm", required=True, help=", ".join(ALGORITHMS))
    train_.add_argument("--seed", type=int)
    train_.add_argument("--rollouts", type=int)
    train_.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of TrainConfig or a hyperparameter; may be repeated",
    )
    train_.add_argument("--model", help="folder or hub name, instead of a preset")
    train_.add_argument("--dtype", help="float32, bfloat16, float64")
    train_.add_argument("--checkpoint-dir", type=Path)
    train_.add_argument("--resume", action="store_true")
    train_.add_argument("--history", type=Path, help="write the history as CSV")
    train_.add_argument("--save", type=Path, help="write the policy (save_pretrained)")
    train_.set_defaults(run=run_train)

    warm = commands.add_parser("warm-start", help="train or find the SFT policy")
    warm.add_argument("--seed", type=int, default=0)
    warm.add_argument("--fresh", action="store_true", help="train it again")
    warm.set_defaults(run=run_warm_start)

    for command in (train_, warm):
        command.add_argument("--preset", default="tiny", help=", ".join(PRESETS))
        command.add_argument("--world", default="arithmetic", choices=WORLDS)
        command.add_argument("--device", help="cpu (default), cuda, mps")

    curve = commands.add_parser("curves", help="write objective and weight as CSV")
    curve.add_argument("--algorithm", required=True)
    curve.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    curve.add_argument("--out", type=Path, default=Path("curves.csv"))
    curve.set_defaults(run=run_curves)

    bench = commands.add_parser("bench", help="measure speed and accuracy")
    bench.add_argument("--seeds", type=int, default=10)
    bench.add_argument(
        "--algorithms",
        nargs="+",
        default=[name for name in ALGORITHMS if name not in ("reinforce", "rspo")],
    )
    bench.add_argument("--chapters", action="store_true", help="time the notebooks too")
    bench.add_argument("--out", type=Path, default=Path("bench.json"))
    bench.set_defaults(run=run_bench)
    hard = commands.add_parser("stress", help="many stale updates, every method")
    dense = [name for name in stress.ARMS if name not in stress.NEED_MOE]
    calm = [name for name in stress.SETTINGS if name not in stress.ON_MOE]
    hard.add_argument("--arms", nargs="+", default=dense, metavar="ARM")
    hard.add_argument("--settings", nargs="+", default=calm, metavar="SETTING")
    hard.add_argument("--seeds", type=int, default=5)
    hard.add_argument("--workers", type=int, default=1)
    hard.add_argument("--out", type=Path, default=Path("stress.csv"))
    hard.set_defaults(run=run_stress)
    return parser


if __name__ == "__main__":
    sys.exit(main())
