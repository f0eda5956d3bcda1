"""Tasks as conversations, with a small template on the tiny tokenizer."""

import copy
import pickle

import pytest

from refimpl import TrainConfig, UserError, train, warm_start
from refimpl.real.chat import Chat
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
    made = make_tokenizer()
    made.chat_template = template
    return made


@pytest.mark.parametrize(
    ("system", "written"),
    [(None, "+00;=3+9=;?"), ("", "+;=3+9=;?"), ("12", "+12;=3+9=;?")],
)
def test_prompts_are_conversations_up_to_where_the_answer_begins(system, written):
    assert Chat(Arithmetic(), tokenizer(), system).prompt("3+9=") == written


def test_rows_and_all_else_are_the_tasks_but_for_the_prompt():
    task = Arithmetic(max_terms=3)
    chat = Chat(task, tokenizer())
    for plain, written in ((task.sample, chat.sample), (task.held_out, chat.held_out)):
        for seed in (1, 2):
            rows = [{**x, "prompt": f"+00;={x['prompt']};?"} for x in plain(5, seed)]
            assert written(5, seed) == rows
    assert chat.held_out(5) == chat.held_out(5, 0)
    assert chat.reward == task.reward and chat.max_terms == 3
    assert (chat.habits, chat.habit("#1")) == (task.habits, "guess")
    with pytest.raises(AttributeError):
        chat.max_term  # noqa: B018


@pytest.mark.parametrize(
    ("template", "system", "sentence"),
    [
        (None, None, r"question ends and its answer begins.*--no-ch"),
        (NO_SYSTEM, "12", r"\(with a system message\): no system"),
        (TEMPLATE, 3, "system must be a text or None, got 3"),
    ],
)
def test_what_no_template_can_write_is_refused(template, system, sentence):
    with pytest.raises(UserError, match=sentence):
        Chat(Arithmetic(), tokenizer(template), system)
    assert Chat(Arithmetic(), tokenizer(NO_SYSTEM)).prompt("1+1=") == "1+1="


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


class Plain:
    """A task that is no dataclass: its repr would be an address in memory."""

    sample = held_out = reward = habit = None


def test_a_chat_is_its_task_system_and_template():
    chat = Chat(Arithmetic(), tokenizer(), "12")
    assert repr(chat).startswith("Chat(Arithmetic(min_terms=2, max_terms=5, ")
    assert "system='12', template=" in repr(chat)
    assert repr(Chat(Plain(), tokenizer())).startswith(f"Chat({__name__}.Plain, ")
    others = (
        Chat(Arithmetic(), tokenizer()),
        Chat(Arithmetic(max_terms=3), tokenizer(), "12"),
        Chat(Arithmetic(), tokenizer(TEMPLATE + " "), "12"),
    )
    assert repr(chat) not in map(repr, others)
    for again in (copy.deepcopy(chat), pickle.loads(pickle.dumps(chat))):
        assert repr(again) == repr(chat) and hash(again) == hash(chat)
        assert again.sample(2, 0) == chat.sample(2, 0)


def test_training_and_evaluation_read_the_conversation():
    """A template that ends in `?`, as one ends in `<think>`: the answer follows it."""
    policy, plain, _ = warm_start()
    config = TrainConfig(rollouts=1, prompts_per_rollout=8, eval_problems=64)
    settings = {"config": config, "model": policy, "tokenizer": plain}
    asked = Chat(Arithmetic(), tokenizer("{{ messages[0].content + '?' }}"))
    bare, chat = (
        train("grpo", task=task, progress=False, **settings)
        for task in (Arithmetic(), asked)
    )
    # After `?` the tiny model rambles on, in digits from the first character.
    assert bare["habit/careful"][0] < 0.6 < 0.9 < chat["habit/careful"][0]
    assert chat["reward"][0] < bare["reward"][0] / 2
    assert chat["accuracy"][0] < 0.4
