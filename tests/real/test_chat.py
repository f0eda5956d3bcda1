"""Tasks as conversations, with a small template on the tiny tokenizer."""

import copy
import pickle

import pytest

from refimpl import TrainConfig, train
from refimpl.real.chat import Chat
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic, make_tokenizer

# system: '+', user: '=', assistant: '?', each with ';' at its end
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}+00;{% endif %}"
    "{% for m in messages %}"
    "{{ {'system': '+', 'user': '='}[m['role']] + m['content'] + ';' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '?' }}{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}"
NO_SYSTEM += "{% endif %}{{ messages[0]['content'] }}"


def tokenizer(template=TEMPLATE):
    found = make_tokenizer()
    found.chat_template = template
    return found


@pytest.mark.parametrize(
    ("system", "written"),
    [(None, "+00;=3+9=;?"), ("", "+;=3+9=;?"), ("12", "+12;=3+9=;?")],
)
def test_prompts_are_conversations_up_to_where_the_answer_begins(system, written):
    assert Chat(Arithmetic(), tokenizer(), system).prompt("3+9=") == written


def test_rows_are_the_tasks_own_but_for_the_prompt():
    task = Arithmetic(max_terms=3)
    chat = Chat(task, tokenizer())
    for plain, written in (
        (task.sample(5, 1), chat.sample(5, 1)),
        (task.held_out(5), chat.held_out(5)),
    ):
        for row, again in zip(plain, written, strict=True):
            prompt = f"+00;={row['prompt']};?"
            assert again == {**row, "prompt": prompt}
    assert chat.reward == task.reward
    assert (chat.habits, chat.habit("#1")) == (task.habits, "guess")
    assert chat.max_terms == 3
    with pytest.raises(AttributeError):
        chat.max_term  # noqa: B018


def test_the_seed_reaches_the_task():
    task = Arithmetic()
    chat = Chat(task, tokenizer())
    for plain, written in ((task.sample, chat.sample), (task.held_out, chat.held_out)):
        for seed in (1, 2):
            again = [row["prompt"] for row in written(5, seed)]
            assert again == [chat.prompt(row["prompt"]) for row in plain(5, seed)]


def test_a_tokenizer_without_a_template_is_refused_with_what_to_do():
    with pytest.raises(
        ValueError, match=r"question ends and its answer begins.*--no-ch"
    ):
        Chat(Arithmetic(), make_tokenizer())


def test_a_template_that_takes_no_system_message_says_so():
    chat = Chat(Arithmetic(), tokenizer(NO_SYSTEM))
    assert chat.prompt("1+1=") == "1+1="
    with pytest.raises(ValueError, match=r"\(with a system message\): no system"):
        Chat(Arithmetic(), tokenizer(NO_SYSTEM), "12")
    with pytest.raises(ValueError, match="system must be a text or None, got 3"):
        Chat(Arithmetic(), tokenizer(), 3)


def test_a_text_does_not_begin_twice():
    """Llama's template writes the BOS token that its tokenizer adds as well."""
    from tokenizers.processors import TemplateProcessing

    plain = tokenizer("{{ bos_token + messages[0]['content'] }}")
    plain.bos_token = "<unk>"
    assert Chat(Arithmetic(), plain).prompt("1") == "<unk>1"
    plain.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", plain.unk_token_id)]
    )
    assert Chat(Arithmetic(), plain).prompt("1") == "1"
    ids = plain(Chat(Arithmetic(), plain).prompt("1"))["input_ids"]
    assert plain.convert_ids_to_tokens(ids) == ["<unk>", "1"]


def test_a_chat_is_its_task_system_and_template():
    chat = Chat(Arithmetic(), tokenizer(), "12")
    assert repr(chat).startswith("Chat(Arithmetic(min_terms=2, max_terms=5, ")
    assert "system='12', template=" in repr(chat)
    others = (
        Chat(Arithmetic(), tokenizer()),
        Chat(Arithmetic(max_terms=3), tokenizer(), "12"),
        Chat(Arithmetic(), tokenizer(TEMPLATE + " "), "12"),
    )
    assert repr(chat) not in map(repr, others)
    for again in (copy.deepcopy(chat), pickle.loads(pickle.dumps(chat))):
        assert repr(again) == repr(chat)
        assert again.sample(2, 0) == chat.sample(2, 0)


class Plain:
    """A task that is no dataclass: its repr would be an address in memory."""

    sample = held_out = reward = habit = None


def test_a_task_without_settings_goes_by_its_class():
    assert repr(Chat(Plain(), tokenizer())).startswith(f"Chat({__name__}.Plain, ")


def test_training_and_evaluation_read_the_conversation():
    """A template that ends in `?`, as one ends in `<think>`: the answer follows it."""
    policy, plain, _ = warm_start()
    config = TrainConfig(rollouts=1, prompts_per_rollout=8, eval_problems=64)
    bare, chat = (
        train(
            "grpo",
            model=policy,
            tokenizer=plain,
            task=task,
            config=config,
            progress=False,
        )
        for task in (
            Arithmetic(),
            Chat(Arithmetic(), tokenizer("{{ messages[0].content + '?' }}")),
        )
    )
    # After `?` the tiny model rambles on, in digits from the first character.
    assert bare["habit/careful"][0] < 0.6 < 0.9 < chat["habit/careful"][0]
    assert chat["reward"][0] < bare["reward"][0] / 2
    assert chat["accuracy"][0] < 0.4
