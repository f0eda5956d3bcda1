"""A task as a conversation: its prompts in the chat template of a model."""

import warnings
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from refimpl.checkpoint import identity
from refimpl.tasks import TaskWarning
from refimpl.validation import Count, Seed, UserError, guarded

MARKS = "Is 4711 odd?", "Answer 1213.", "It is 1415."
"""A question, a system message and an answer, looked for in what a template writes."""


@dataclass(frozen=True, repr=False)
class Chat:
    """`task` with every prompt written as `tokenizer`'s chat template writes it.

        <|im_start|>user                     what the model was trained to read
        4 + 6 =<|im_end|>
        <|im_start|>assistant

    A chat model that gets the bare question instead may continue the question, and has
    no reason to end its answer. `system` is the system message: None leaves what the
    template puts there itself (SmolLM2's: 16 tokens that introduce it), a text replaces
    it, and so does an empty one, with the shortest prompt of the three.

    Reward, habits and whatever else the task has are its own; the reward function gets
    the prompts as they were written for the model.

    `switches` are the template's own, as `{"enable_thinking": False}`.

    Raises `UserError` if the tokenizer has no chat template, or if its template leaves
    out the question (as those that want a list of parts) or the system message. Warns
    where a turn ends in another token than the tokenizer's `eos_token`.
    """

    task: Any
    tokenizer: PreTrainedTokenizerBase
    system: str | None = None
    switches: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                "the tokenizer has no chat template: without one a model is not told "
                "where the question ends and its answer begins. For a base model, use "
                "the task without Chat (--no-chat): it reads the bare question. For a "
                "chat model, set tokenizer.chat_template"
            )
        if not (self.system is None or isinstance(self.system, str)):
            raise UserError(f"system must be a text or None, got {self.system!r}")
        if not isinstance(self.switches, dict):
            raise UserError(f"switches must be a dictionary, got {self.switches!r}")
        self._check_template()

    def __repr__(self) -> str:
        """Names the task, the system message, and the template by a hash."""
        task = identity(self.task)
        template = zlib.crc32(str(self.tokenizer.chat_template).encode())
        switches = f", switches={self.switches!r}" if self.switches else ""
        return (
            f"Chat({task}, system={self.system!r}, template={template:08x}{switches})"
        )

    def __hash__(self) -> int:
        return hash(repr(self))

    def __getattr__(self, name: str) -> Any:
        if name == "task" or name.startswith("__"):  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.task, name)

    @guarded
    def sample(self, n: Count, seed: Seed) -> list[dict]:
        """The task's training problems, as conversations."""
        return self._written(self.task.sample(n, seed))

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """The task's held-out problems, as conversations."""
        return self._written(self.task.held_out(n, seed))

    def prompt(self, question: str) -> str:
        """The prompt of the model: the conversation up to the start of its answer."""
        return self._without_second_start(self._rendered(question, self.system))

    def _rendered(self, question: str, system: str | None, answer: str = "") -> str:
        messages = [{"role": "user", "content": question}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        if answer:
            messages.append({"role": "assistant", "content": answer})
        own = {"tokenize": False, "add_generation_prompt": not answer}
        try:
            text = self.tokenizer.apply_chat_template(messages, **self.switches | own)
        except Exception as error:  # whatever a template raises
            reason = " ".join(str(error).split())
            system = "" if self.system is None else " (with a system message)"
            raise UserError(
                f"the tokenizer's chat template cannot be used{system}: {reason}"
            ) from error
        return str(text)

    def _check_template(self) -> None:
        question, system, answer = MARKS
        text = self._rendered(question, self.system and system)
        if question not in text:
            raise UserError(
                "the tokenizer's chat template leaves out the question: of "
                f"{question!r} it makes {text!r}. It may want a list of parts, as "
                "those of vision models do: take a tokenizer.chat_template for texts"
            )
        if self.system and system not in text:
            raise UserError(
                "the tokenizer's chat template leaves out the system message: put it "
                "into the question, or set tokenizer.chat_template to one that takes it"
            )
        try:
            after = self._rendered(question, self.system, answer).partition(answer)[2]
        except UserError:  # it writes no answers
            return
        eos = str(self.tokenizer.eos_token)
        special = [s for s in self.tokenizer.all_special_tokens if s in after]
        if special and eos not in special:
            warnings.warn(
                f"the chat template ends a turn with {special[0]!r}, and the eos_token "
                f"is {eos!r}: unless the model's generation_config names that token "
                "too, an answer runs on after its end",
                TaskWarning,
                stacklevel=4,
            )

    def _without_second_start(self, text: str) -> str:
        """The text less the token with which the tokenizer begins every text anyway."""
        start = self.tokenizer.bos_token
        if not start or not text.startswith(start):
            return text
        twice = [self.tokenizer.bos_token_id] * 2
        if list(self.tokenizer(text)["input_ids"][:2]) != twice:
            return text
        return text[len(start) :]

    def _written(self, rows: Collection[dict]) -> list[dict]:
        return [{**row, "prompt": self.prompt(row["prompt"])} for row in rows]
