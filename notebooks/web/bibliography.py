"""Every paper that the code, the chapters or the guide cite by its arXiv id."""

import html
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat

from web.cheat_sheet import CHAPTERS
from web.page import NOTEBOOKS, ROOT, Page

ID = re.compile(r"(?<![\d.])\d{4}\.\d{5}(?!\d)")
PAPERS = {
    "1506.02438": (
        "Schulman et al.",
        "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    ),
    "1707.06347": ("Schulman et al.", "Proximal Policy Optimization Algorithms"),
    "1904.09751": ("Holtzman et al.", "The Curious Case of Neural Text Degeneration"),
    "1912.09729": (
        "Ye et al.",
        "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning",
    ),
    "2101.03961": (
        "Fedus et al.",
        "Switch Transformers: Scaling to Trillion Parameter Models with Simple and "
        "Efficient Sparsity",
    ),
    "2106.09685": (
        "Hu et al.",
        "LoRA: Low-Rank Adaptation of Large Language Models",
    ),
    "2107.03374": (
        "Chen et al.",
        "Evaluating Large Language Models Trained on Code",
    ),
    "2203.11171": (
        "Wang et al.",
        "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
    ),
    "2306.13649": (
        "Agarwal et al.",
        "On-Policy Distillation of Language Models: Learning from Self-Generated "
        "Mistakes",
    ),
    "2310.12036": (
        "Azar et al.",
        "A General Theoretical Paradigm to Understand Learning from Human Preferences",
    ),
    "2312.03732": (
        "Kalajdzievski",
        "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA",
    ),
    "2402.03300": (
        "Shao et al.",
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language "
        "Models",
    ),
    "2402.14740": (
        "Ahmadian et al.",
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from "
        "Human Feedback in LLMs",
    ),
    "2405.19107": (
        "Richemond et al.",
        "Offline Regularised Reinforcement Learning for Large Language Models "
        "Alignment",
    ),
    "2501.12599": (
        "Kimi Team",
        "Kimi k1.5: Scaling Reinforcement Learning with LLMs",
    ),
    "2502.02737": (
        "Ben Allal et al.",
        "SmolLM2: When Smol Goes Big – Data-Centric Training of a Small Language Model",
    ),
    "2503.14476": (
        "Yu et al.",
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    ),
    "2503.20783": (
        "Liu et al.",
        "Understanding R1-Zero-Like Training: A Critical Perspective",
    ),
    "2505.22617": (
        "Cui et al.",
        "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    ),
    "2505.23585": (
        "Hao et al.",
        "On-Policy RL with Optimal Reward Baseline",
    ),
    "2505.24298": (
        "Fu et al.",
        "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language "
        "Reasoning",
    ),
    "2506.13585": (
        "MiniMax",
        "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    ),
    "2507.18071": ("Zheng et al.", "Group Sequence Policy Optimization"),
    "2507.20673": ("Zhao et al.", "Geometric-Mean Policy Optimization"),
    "2508.08221": (
        "Liu et al.",
        "Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
    ),
    "2510.11370": (
        "Ma et al.",
        "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference "
        "Routers",
    ),
    "2510.13786": (
        "Khatri et al.",
        "The Art of Scaling Reinforcement Learning Compute for LLMs",
    ),
    "2510.18855": (
        "Ling Team",
        "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale "
        "Thinking Model",
    ),
    "2510.23027": (
        "Zhang et al.",
        "Towards Stable and Effective Reinforcement Learning for Mixture-of-Experts",
    ),
    "2511.20347": ("Gao et al.", "Soft Adaptive Policy Optimization"),
    "2512.01374": (
        "Zheng et al.",
        "Stabilizing Reinforcement Learning with LLMs: Formulation and Practices",
    ),
    "2512.02556": (
        "DeepSeek-AI",
        "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models",
    ),
    "2601.02780": ("Xiao et al.", "MiMo-V2-Flash Technical Report"),
    "2601.05242": (
        "Liu et al.",
        "GDPO: Group reward-Decoupled Normalization Policy Optimization for "
        "Multi-reward RL Optimization",
    ),
    "2601.19897": (
        "Shenfeld et al.",
        "Self-Distillation Enables Continual Learning",
    ),
    "2601.20802": (
        "Hübotter et al.",
        "Reinforcement Learning via Self-Distillation",
    ),
    "2602.02276": ("Kimi Team", "Kimi K2.5: Visual Agentic Intelligence"),
    "2602.02710": ("Tajwar et al.", "Maximum Likelihood Reinforcement Learning"),
    "2602.04879": (
        "Qi et al.",
        "Rethinking the Trust Region in LLM Reinforcement Learning",
    ),
    "2602.05261": (
        "Liu et al.",
        "Length-Unbiased Sequence Policy Optimization: Revealing and Controlling "
        "Response Length Variation in RLVR",
    ),
    "2602.10693": (
        "Shen et al.",
        "VESPO: Variational Sequence-Level Soft Policy Optimization for Stable "
        "Off-Policy LLM Training",
    ),
    "2602.15763": ("GLM-5 Team", "GLM-5: from Vibe Coding to Agentic Engineering"),
    "2605.07865": (
        "Oh et al.",
        "KL for a KL: On-Policy Distillation with Control Variate Baseline",
    ),
    "2606.30406": (
        "Ma et al.",
        "MOPD: Multi-Teacher On-Policy Distillation for Capability Integration in LLM "
        "Post-Training",
    ),
}
"""Author and title, each looked up under its id in other people's bibliographies."""
LEAD = """<h1 id="top">Bibliography</h1>
<p>Every paper with an arXiv id that the chapters, the guide or the code cite, and where
they do. The year is that of the first version. Williams' REINFORCE of 1992 has no
arXiv id: <cite>Simple Statistical Gradient-Following Algorithms for Connectionist
Reinforcement Learning</cite>, Machine Learning 8.</p>"""


def page(group: str) -> Page:
    items = "".join(item(paper, places) for paper, places in sorted(cited().items()))
    return Page(
        "bibliography.html",
        "Bibliography",
        f'{LEAD}<ul class="papers">{items}</ul>',
        group,
        summary=f"{len(cited())} papers, with the chapters that cite each.",
    )


def item(paper: str, places: list[Path]) -> str:
    """A paper as a line of the list; of a title that nobody looked up it says so."""
    author, title = PAPERS.get(paper, ("", "title not verified"))
    written = f"{author} " * bool(author) + f"20{paper[:2]}"
    link = f'<a href="https://arxiv.org/abs/{paper}">{paper}</a>'
    where = ", ".join(dict.fromkeys(map(place, places)))
    return (
        f'<li id="arxiv-{paper}">{html.escape(written)}, '
        f"<cite>{html.escape(title)}</cite>, {link}. Cited in {where}.</li>"
    )


def place(path: Path) -> str:
    """The chapter or page of the guide that a file belongs to, or the file's name."""
    number = re.match(r"(?:chapter)?(\d\db?)", path.stem)
    chapter = number[1] if number else CHAPTERS.get(path.stem, "")[:2]
    if chapter:
        (notebook,) = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
        return f'<a href="{notebook.stem}.html">chapter {chapter}</a>'
    if path.suffix == ".md":
        return f'<a href="{path.stem}.html">{html.escape(path.stem)}</a>'
    return f"<code>{html.escape(path.relative_to(ROOT).as_posix())}</code>"


@cache
def cited() -> dict[str, list[Path]]:
    """Id → the files that name it, chapters first."""
    found: dict[str, list[Path]] = {}
    for path in sources():
        for paper in sorted(set(ID.findall(text(path)))):
            found.setdefault(paper, []).append(path)
    return found


def sources() -> Iterator[Path]:
    yield from sorted(NOTEBOOKS.glob("*.ipynb"))
    yield from sorted((NOTEBOOKS / "guide").glob("*.md"))
    yield from sorted((ROOT / "refimpl").rglob("*.py"))
    yield from sorted((NOTEBOOKS / "course").rglob("*.py"))


def text(path: Path) -> str:
    """What people wrote in a file: of a notebook its cells, without pictures."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n".join(c.source for c in nbformat.read(path, as_version=4).cells)
