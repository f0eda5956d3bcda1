"""Tasks as conversations: prompts in a model's chat template."""

import warnings
import zlib
from collections.abc import Collection
from dataclasses import field
from typing import Any

from transformers import PreTrainedTokenizerBase

from refimpl.checkpoint import identity
from refimpl.rewards import Prompt, said
from refimpl.tasks import TaskWarning
from refimpl.validation import Count, Seed, UserError, checked, guarded

MARKS = "Is 4711 odd?", "Answer 1213.", "It is 1415."
"""A question, a system message and an answer, with which templates are tested."""


@checked
class Chat:
    """`task` with all prompts in `tokenizer`'s chat template.

        <|im_start|>user                     the format that the model was trained on
        4 + 6 =<|im_end|>
        <|im_start|>assistant

    A chat model that gets the bare question instead may continue the question, and may
    not end its answer. `system` is the system message. None keeps the template's
    default (SmolLM2's takes 16 tokens and introduces the model), a text replaces the
    default, and an empty text gives the shortest prompt of the three.

    The reward, the habits and all other attributes are those of `task`. The reward
    function gets the prompts in the template, or the messages of the conversation if it
    reads messages (see `refimpl.rewards.conversational`).

    `switches` are options of the template, such as `{"enable_thinking": False}`.

    Raises `UserError` if the tokenizer has no chat template, or if its template leaves
    out the question (templates for a list of parts do) or the system message. Warns if
    a turn ends with a token other than the tokenizer's `eos_token`.
    """

    task: Any
    tokenizer: PreTrainedTokenizerBase
    system: str | None = None
    switches: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                "the tokenizer has no chat template, so nothing marks where the "
                "question ends and the answer begins. For a base model, which reads "
                "the bare question, use the task without Chat (--no-chat). For a chat "
                "model, set tokenizer.chat_template"
            )
        self._check_template()

    def __repr__(self) -> str:
        """Name the task, the system message, and the template by its hash."""
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
        """Draw n of the task's training problems, as conversations."""
        return self._written(self.task.sample(n, seed))

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """Draw n of the task's held-out problems, as conversations."""
        return self._written(self.task.held_out(n, seed))

    def prompt(self, question: str) -> Prompt:
        """Return the conversation up to where the model's answer begins."""
        text = self._rendered(question, self.system)
        prompt = Prompt(self._without_second_start(text))
        prompt.messages = self._messages(question, self.system)
        return prompt

    def _messages(self, question: str, system: str | None) -> list[dict[str, str]]:
        first = [] if system is None else [said("system", system)]
        return [*first, said("user", question)]

    def _rendered(self, question: str, system: str | None, answer: str = "") -> str:
        messages = self._messages(question, system)
        if answer:
            messages.append(said("assistant", answer))
        own = {"tokenize": False, "add_generation_prompt": not answer}
        try:
            text = self.tokenizer.apply_chat_template(messages, **self.switches | own)
        except Exception as error:  # whatever a template raises
            reason = " ".join(str(error).split())
            raise UserError(
                f"the tokenizer's chat template cannot be used: {reason}"
            ) from error
        return str(text)

    def _check_template(self) -> None:
        question, system, answer = MARKS
        text = self._rendered(question, self.system and system)
        if question not in text:
            raise UserError(
                "the tokenizer's chat template leaves out the question: it turns "
                f"{question!r} into {text!r}. It may expect a list of parts, as those "
                "of vision models do: set tokenizer.chat_template to one for texts"
            )
        if self.system and system not in text:
            raise UserError(
                "the tokenizer's chat template leaves out the system message: put it "
                "into the question, or set tokenizer.chat_template to one that takes it"
            )
        try:
            after = self._rendered(question, self.system, answer).partition(answer)[2]
        except UserError:  # this template takes no answers, so their end is unknown
            return
        eos = str(self.tokenizer.eos_token)
        special = [s for s in self.tokenizer.all_special_tokens if s in after]
        if special and eos not in special:
            warnings.warn(
                f"the chat template ends a turn with {special[0]!r}, but the eos_token "
                f"is {eos!r}: unless the model's generation_config names the first "
                "token too, an answer runs on after its end",
                TaskWarning,
                stacklevel=5,
            )

    def _without_second_start(self, text: str) -> str:
        """Remove a leading BOS token if the tokenizer adds one to every text itself.

        Llama 3's template and its tokenizer both write one.
        """
        start = self.tokenizer.bos_token
        if not start or not text.startswith(start):
            return text
        twice = [self.tokenizer.bos_token_id] * 2
        if list(self.tokenizer(text)["input_ids"][:2]) != twice:
            return text
        return text[len(start) :]

    def _written(self, rows: Collection[dict]) -> list[dict]:
        return [{**row, "prompt": self.prompt(row["prompt"])} for row in rows]
