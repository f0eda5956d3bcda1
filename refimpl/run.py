"""A run: the objects that the loop works with, what it computes, and how it ends.

`options.prepare` makes a `Run`. Nothing in it decides anything: an object that a
setting switches off is an empty list, a function that does nothing, or None. `session`
keeps all complete rollouts if Ctrl-C, a signal or an error ends the run.
"""

import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.advantages import Scored, token_rewards
from refimpl.algorithms import Algorithm
from refimpl.config import TrainConfig
from refimpl.files import CheckpointError
from refimpl.history import History, mean_over
from refimpl.kl import k1
from refimpl.logprobs import Reading
from refimpl.loss_terms import Correction, Term, Value
from refimpl.models import Model, one_thread, precision
from refimpl.moe import Drift, routed, visited_again
from refimpl.responses import Responses, Scoring, sampler_mismatch
from refimpl.rewards import rows_of
from refimpl.rollout import Batch, Rollout
from refimpl.sampling import Sampler, Sampling
from refimpl.validation import UserError


@dataclass(frozen=True)
class Fixed:
    """What stays fixed during the K updates of a rollout, with its metrics.

    `rollout` holds the experts of the pass that computed log π_old, if they were
    recorded. log π_ref, log π_T (a teacher) and values are None where not needed.
    """

    rollout: Rollout
    old_logp: Float[Tensor, "B T"]
    ref_logp: Float[Tensor, "B T"] | None = None
    teacher_logp: Float[Tensor, "B T"] | None = None
    values: Float[Tensor, "B T"] | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """The objects of a training run.

    `config` includes the settings that the method's paper prescribes, and
    `hyperparameters` have been checked. `critic`, `value`, `reference` and `teacher`
    are None in a run that does not need them.
    """

    algorithm: Algorithm
    config: TrainConfig
    hyperparameters: dict
    tokenizer: PreTrainedTokenizerBase
    task: Any  # see `refimpl.tasks`
    reward: Callable
    model: Model
    critic: Model | None
    reference: Model | None
    teacher: Model | None
    optimizer: torch.optim.Optimizer
    history: History
    # The steps of `loop`, in its order
    fill_batch: Callable  # f(draw) → responses: one round, or dynamic sampling
    sampler: Sampler
    score: Scoring  # f(problems, rollout) → responses with rewards
    old_logp_of: Literal["policy", "sampler"]  # whose log-probs are log π_old
    log_probs: Callable  # f(model, rollout, temperature) → (logp, entropy)
    turns: Callable  # f(rollout) → states of turns, for an estimator that compares them
    lam: Callable  # f(mask) → λ of GAE
    advantages: Callable  # f(scored) → (advantages (B, T), critic's targets, metrics)
    loss_mask: Callable  # f(rollout) → 1 on tokens that have a loss
    normaliser: Callable  # f(mask of a mini-batch, group) → weight (B, T)
    corrections: list[Correction]
    loss_terms: list[Term]
    value: Value | None  # the critic's loss, one of the terms
    records_routing: bool  # the model is a mixture of experts with a router we can read
    zero_advantage_rows_matter: bool  # rows with Â = 0 have a gradient, as with a KL
    handed_in: list[Any] = field(default_factory=list)  # a resumed run needs the same
    # The state of the run
    drawn: Responses | None = None  # of the latest rollout, all that were sampled
    batch: Batch | None = None  # of the latest rollout, those that are trained on
    begun: int = 0  # rollouts whose updates have begun
    stop_signal: int | None = None  # the signal that asked the run to end

    @property
    def adaptive_terms(self) -> list[Any]:
        """The loss terms that change with the updates, as an adaptive bonus does."""
        return [term for term in self.loss_terms if hasattr(term, "end_update")]

    def last(self, step: int) -> bool:
        """True if the run ends with this rollout."""
        return step + 1 == self.config.rollouts or bool(self.stop_signal)

    @property
    def complete(self) -> bool:
        """True between rollouts, when what is saved can be resumed."""
        return self.begun <= len(self.history)

    def seed(self, step: int, purpose: str, refill: int = 0) -> int:
        """Return the seed of a purpose, so that one choice leaves the others alone."""
        purpose = f"{purpose} {refill}" if refill else purpose
        return seeds.seed_for(self.config.seed, step, purpose)

    def problems(self, step: int, refill: int = 0) -> list[dict]:
        """Draw the task's problems of a rollout."""
        n, seed = self.config.prompts_per_rollout, self.seed(step, "q", refill)
        return rows_of(self.task, "sample", n, seed)

    def sample(self, problems: list[dict], step: int, refill: int = 0) -> Rollout:
        """Sample G responses to each problem; the task may answer them, as a tool."""
        config = self.config
        return self.sampler.respond(
            self.tokenizer,
            [problem["prompt"] for problem in problems],
            Sampling(config.group_size, **config.sampling),
            self.seed(step, "sample", refill),
            self.seed(step, "router", refill),
            getattr(self.task, "observe", None),
        )

    def read(self, model: Model, rollout: Rollout, replay: bool = False) -> Reading:
        """Compute a model's log-probs and entropies, nats, in this run's precision.

        With `replay`, each token visits the experts on the rollout's record, if the run
        replays them.
        """
        watched: Any = contextlib.nullcontext()
        if self.records_routing and model is self.model:
            again = replay and self.config.replay is not None
            watched = routed(model, experts=rollout.experts if again else None)
        with precision(model, self.config.dtype), watched as routing:
            logp, entropy = self.log_probs(model, rollout, self.config.temperature)
        return Reading(logp, entropy, routing and Drift(rollout, routing))

    def passes(self, rollout: Rollout) -> tuple[Tensor | None, ...]:
        """Compute log π_old and its experts, log π_ref, log π_T and V (or None)."""
        old_logp: Any = None
        visits: Any = (None, None)
        if self.old_logp_of == "policy":
            # R3 replays the sampler's experts here. R2 lets the routers choose, and
            # replays their choice in the updates.
            reading = self.read(self.model, rollout, self.config.replay == "R3")
            old_logp = reading.logp
            if reading.routers:
                visits = reading.routers.routing.visits(len(rollout))
        models = self.reference, self.teacher
        others = [model and self.read(model, rollout).logp for model in models]
        values = None if self.value is None else self.value.values(rollout)
        return old_logp, *visits, *others, values

    def fixed(self, rollout: Rollout) -> Fixed:
        """Compute what stays fixed during the updates, before the first of them."""
        others = self.reference or self.teacher or self.value
        if self.old_logp_of == "sampler" and not others:
            return Fixed(rollout, rollout.logp)  # stored as the tokens were drawn
        passes = rollout.in_parts(self.passes, self.config.micro_batch_size)
        old_logp, experts, router_logp, ref, teacher, values = passes
        mask, metrics = rollout.mask, dict[str, float]()
        if self.old_logp_of == "sampler":
            old_logp = rollout.logp
        else:
            metrics |= sampler_mismatch(rollout, old_logp, self.config.truncated)
        if experts is not None:
            rollout, change = visited_again(rollout, experts, router_logp)
            metrics["sampling/expert_change"] = mean_over(change, mask)
        for name, logp in {"kl": ref, "teacher_kl": teacher}.items():
            if logp is not None:
                metrics[name] = mean_over(k1(old_logp, logp) * mask, mask)
        return Fixed(rollout, old_logp, ref, teacher, values, metrics)

    def scored_tokens(self, drawn: Responses, fixed: Fixed) -> Scored:
        """Put together everything that an estimator of advantages may look at."""
        config, rollout, penalty = self.config, fixed.rollout, None
        if config.kl_in == "reward":  # β · KL is subtracted from each token's reward
            penalty = config.beta * k1(fixed.old_logp, fixed.ref_logp)
        return Scored(
            rewards=token_rewards(drawn.paid[drawn.rows], rollout.mask, penalty),
            group=rollout.group,
            mask=rollout.mask,
            values=fixed.values,
            gamma=config.gamma,
            lam=self.lam(rollout.mask),
            components=drawn.component_matrix(drawn.rows),
            weights=getattr(self.reward, "weights", None),
            logp=fixed.old_logp,
            teacher_logp=fixed.teacher_logp,
            **self.turns(rollout),
        )

    def parts(self, mini: Batch, weight: Float[Tensor, "B T"]):
        """Yield the micro-batches that need a pass, each with its part of `weight`."""
        rows = mini.informative_rows(keep_all=self.zero_advantage_rows_matter)
        by_group = getattr(self.log_probs, "by_group", False)  # reads a prompt once
        return mini.micro_batches(weight, rows, self.config.micro_batch_size, by_group)


# How it ends


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; the status of a command is 128 + `number`.

    After Ctrl-C it carries the `history` so far.
    """

    history: Any = None

    def __init__(self, reason: str, number: int = signal.SIGINT):
        super().__init__(reason)
        self.number = number


ENDS_A_RUN = (KeyboardInterrupt, FloatingPointError, CheckpointError, UserError)
"""Errors after which `train` returns the history, unless the user pressed Ctrl-C. A
`UserError` comes from a reward, a scorer or a task that fails in a later rollout, or
from dynamic sampling that finds no group."""


@contextlib.contextmanager
def session(run: Run, hooks: Collection[Callable]) -> Iterator[None]:
    """Enter each hook's `around`, and keep all complete rollouts if the run ends early.

    Errors of `ENDS_A_RUN` are stored in `History.ended`, and a warning says them. Any
    other error, and Ctrl-C, is raised and carries the run's `history`: a loop over
    seeds must not go on with the next one. Before the first rollout is complete, every
    error is raised unchanged.
    """

    def request(number: int, _) -> None:
        """Finish the rollout first; a second Ctrl-C does not wait for it."""
        ending = run.history.ended is not None  # then only a moment is left
        if run.stop_signal and number == signal.SIGINT and not ending:
            raise KeyboardInterrupt
        run.stop_signal = run.stop_signal or number

    with one_thread(run.model), signals_to(request):
        try:
            with contextlib.ExitStack() as stack:
                for hook in hooks:
                    if hasattr(hook, "around"):
                        stack.enter_context(hook.around(run))
                yield
        except BaseException as error:
            if not run.history.rows:
                raise
            run.history.ended = error
            run.optimizer.zero_grad(set_to_none=True)  # an update may be cut short
            if not isinstance(error, ENDS_A_RUN):
                error.history = run.history  # type: ignore[attr-defined]
                raise
            run.history.ended = ended = with_progress(run, error)
            if isinstance(ended, Interrupted) and ended.number == signal.SIGINT:
                ended.history = run.history
                ended.add_note("sys.last_value.history holds the history so far")
                raise ended from None
            # Up to the caller of `train`, past a context manager and two decorators.
            warnings.warn(str(run.history.ended), stacklevel=6)


def with_progress(run: Run, error: BaseException) -> BaseException:
    """Make an error of the same class whose message also has the run's progress."""
    kind: Any = type(error)
    why = str(error)
    if isinstance(error, KeyboardInterrupt):
        number = run.stop_signal or signal.SIGINT
        kind = partial(Interrupted, number=number)
        why = signal.Signals(number).name
        if number == signal.SIGINT:
            why = "interrupted"
    done = f"stopped after {len(run.history)} of {run.config.rollouts} rollouts"
    notes = getattr(error, "__notes__", [])  # of a checkpoint that could not be written
    ended = kind("; ".join([f"{done}: {why}", *notes]))
    ended.__cause__ = error
    return ended


@contextlib.contextmanager
def signals_to(handler: Callable) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP by `handler` inside the block."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # others get no signals
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) is not signal.SIG_IGN:  # nohup's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
