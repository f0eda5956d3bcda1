"""Does `notebooks/methods.toml` name every loss that the engines' newest wheels offer?

python -m tests.tools.engines

It downloads each wheel from PyPI, without its dependencies, and reads the files named
below as text; nothing of a wheel is imported. It lists the values that the engine's
options take, and fails if no entry of the engine in the table mentions one of them.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections import defaultdict
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "notebooks" / "methods.toml"
WHEELS = {
    "TRL": ("trl", r"trl/trainer/grpo_trainer\.py"),
    "verl": ("verl", r"verl/trainer/ppo/core_algos\.py"),
    "OpenRLHF": ("openrlhf", r"openrlhf/cli/train_ppo_ray\.py"),
    "SkyRL": ("skyrl", r"skyrl_train/utils/ppo_utils\.py"),
    "ms-swift": ("ms-swift", r"rlhf_trainers/(grpo_trainer|args_mixin)\.py"),
    "Unsloth": ("unsloth_zoo", r"unsloth_zoo/rl_replacements\.py"),
    "AReaL": ("areal", r"areal/trainer/ppo/actor\.py"),
    "Tinker": ("tinker", r"tinker/types/loss_fn_type\.py"),
}
"""For each engine its project on PyPI, and the files that hold its losses."""
OPTIONS = (
    *("policy_loss_type", "loss_type", "PolicyLossType", "LossFnType"),
    *("register_policy_loss", "importance_sampling_level", "use_sapo_loss"),
    *("AdvantageEstimator", "advantage_estimator", "advantage.estimator"),
    *("loss_agg_mode", "advantage_reweight", "is_correction_gating"),
)
"""Options, their types, and decorators that register a loss."""


def offered(node: ast.AST) -> tuple[str, list[ast.AST]]:
    """Return a name, and the parts of the source that hold values of that option."""
    match node:
        case ast.AnnAssign() if "Literal[" in ast.unparse(node):
            return ast.unparse(node.target), [node.annotation, node.value or node]
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=[flag, *_]):
            choices = [k.value for k in node.keywords if k.arg == "choices"]
            return ast.unparse(flag).strip("'"), choices
        case ast.Call():
            return ast.unparse(node.func), node.args
        case ast.Compare():
            return ast.unparse(node.left), node.comparators
        case ast.ClassDef():
            assigned = [x.value for x in node.body if isinstance(x, ast.Assign)]
            return node.name, assigned
        case ast.arg(arg="use_sapo_loss" as name):
            return name, [ast.Constant(name)]
    return "", []


def options(sources: list[str]) -> dict[str, set[str]]:
    """Return the values of each option, in all these files."""
    found = defaultdict(set)
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        name, parts = offered(node)
        option = next((x for x in OPTIONS if re.search(rf"(^|[._-]){x}$", name)), None)
        leaves = (leaf for part in parts for leaf in ast.walk(part))
        texts = {x.value for x in leaves if isinstance(x, ast.Constant)}
        words = {x for x in texts if isinstance(x, str) and re.fullmatch(r"[\w+-]+", x)}
        if option and words:
            found[option] |= words
    return found


def downloaded(project: str, files: str) -> tuple[str, list[str]]:
    """Return the version of a project's newest wheel, and the text of these files."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        where = ["--only-binary", ":all:", "--dest", folder, project]
        subprocess.run([*pip, *where], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            names = [name for name in packed.namelist() if re.search(files, name)]
            texts = [packed.read(name).decode() for name in names]
        return wheel.name.split("-")[1], texts


def told(table: dict, engine: str) -> str:
    """Join what the table says about an engine, without the names of our methods."""
    own = table["engines"][engine]
    several = [{**entry, "methods": ()} for entry in own.get("several", ())]
    others = [m.get("engines", {}).get(engine) for m in table["method"].values()]
    return json.dumps([{**own, "several": several}, others])


def main() -> None:
    """Print every value, and fail if the table is silent about one."""
    table, failed = tomllib.loads(TABLE.read_text(encoding="utf-8")), False
    for engine, (project, files) in WHEELS.items():
        version, sources = downloaded(project, files)
        found, text = options(sources), told(table, engine)
        read = table["engines"][engine]["read"]
        print(f"{engine}: {project} {version}; read: {read}")
        for option, values in found.items():
            bare = {x: rf"(?<![\w-]){re.escape(x)}(?![\w-])" for x in values}
            silent = sorted(x for x in values if not re.search(bare[x], text))
            print(f"  {option}: {', '.join(sorted(values - {*silent}))}")
            if silent:
                print(f"    NOT IN THE TABLE: {', '.join(silent)}")
            failed |= bool(silent)
        failed |= not found
    sys.exit(failed)


if __name__ == "__main__":
    main()
