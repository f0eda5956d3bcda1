"""Tasks as conversations: prompts in a model's chat template."""

import zlib
from collections.abc import Collection
from dataclasses import field
from typing import Any

from transformers import PreTrainedTokenizerBase

from refimpl.checkpoint import identity
from refimpl.rewards import Prompt, said
from refimpl.validation import Count, Seed, UserError, checked, guarded, one_line

MARKS = "Is 4711 odd?", "Answer 1213."
"""A question and a system message, with which templates are tested."""


@checked
class Chat:
    """`task` with all prompts in `tokenizer`'s chat template.

        <|im_start|>user                     the format that the model was trained on
        4 + 6 =<|im_end|>
        <|im_start|>assistant

    A chat model that gets the bare question instead may continue the question, and may
    not end its answer. A base model has no template and reads the bare question: use
    `task` itself. `system` is the system message. None keeps the template's
    default (SmolLM2's takes 16 tokens and introduces the model), a text replaces the
    default, and an empty text gives the shortest prompt of the three.

    The reward, the habits and all other attributes are those of `task`. The reward
    function gets the prompts in the template. One that `refimpl.rewards.conversational`
    wraps gets the messages of the conversation.

    `switches` are options of the template, such as `{"enable_thinking": False}`.

    Raises `UserError` if the tokenizer has no chat template, or if its template leaves
    out the question (templates for a list of parts do) or the system message.
    """

    task: Any
    tokenizer: PreTrainedTokenizerBase
    system: str | None = None
    switches: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        question, system = MARKS
        system = self.system and system
        text = self._rendered(question, system)
        for what, mark in (("question", question), ("system message", system)):
            if mark and mark not in text:
                raise UserError(
                    f"the tokenizer's chat template leaves out the {what}: set "
                    "tokenizer.chat_template to one that takes it, as a text"
                )

    def __repr__(self) -> str:
        """Name the task, the system message, and the template by its hash."""
        template = zlib.crc32(str(self.tokenizer.chat_template).encode())
        return (
            f"Chat({identity(self.task)}, system={self.system!r}, "
            f"template={template:08x}, switches={self.switches!r})"
        )

    def __hash__(self) -> int:
        return hash(repr(self))

    def __getattr__(self, name: str) -> Any:
        if name == "task" or name.startswith("__"):  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.task, name)

    @guarded
    def sample(self, n: Count, seed: Seed) -> list[dict]:
        """Draw n of the task's training problems, as conversations."""
        return self._written(self.task.sample(n, seed))

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """Draw n of the task's held-out problems, as conversations."""
        return self._written(self.task.held_out(n, seed))

    def prompt(self, question: str) -> Prompt:
        """Return the conversation up to where the model's answer begins."""
        prompt = Prompt(self._rendered(question, self.system))
        prompt.messages = self._messages(question, self.system)
        return prompt

    def _messages(self, question: str, system: str | None) -> list[dict[str, str]]:
        first = [] if system is None else [said("system", system)]
        return [*first, *getattr(question, "messages", [said("user", question)])]

    def _rendered(self, question: str, system: str | None) -> str:
        messages = self._messages(question, system)
        own = {"tokenize": False, "add_generation_prompt": True}
        try:
            return self.tokenizer.apply_chat_template(messages, **self.switches | own)
        except Exception as error:  # whatever a template raises
            raise UserError(
                f"the tokenizer's chat template cannot be used: {one_line(error)}"
            ) from error

    def _written(self, rows: Collection[dict]) -> list[dict]:
        return [{**row, "prompt": self.prompt(row["prompt"])} for row in rows]
