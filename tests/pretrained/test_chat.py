"""Tasks as conversations, with a small template on the tiny tokenizer."""

import copy
import pickle

import pytest
from tokenizers.processors import TemplateProcessing

from refimpl import UserError
from refimpl.hooks import Samples
from refimpl.pretrained.chat import Chat
from refimpl.rewards import conversational
from refimpl.sampling import encode
from refimpl.tasks import Arithmetic, make_tokenizer
from tests.worlds import TOKENIZER, random_model, small_run

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
    prompt = Chat(Arithmetic(), tokenizer(), system).prompt("3+9=")
    assert prompt == written
    first = [] if system is None else [{"role": "system", "content": system}]
    assert prompt.messages == [*first, {"role": "user", "content": "3+9="}]


def test_a_run_keeps_plain_texts_of_its_conversations(tmp_path):
    """A checkpoint refuses other classes, and a resumed run would find it damaged."""
    task = Chat(Arithmetic(), tokenizer())
    given = {"task": task, "checkpoint_dir": tmp_path}

    def reward(prompts, completions, **_):
        return [
            float(p[-1]["content"][0] in c[0]["content"])
            for p, c in zip(prompts, completions)
        ]

    given["reward"] = conversational(reward)
    first = small_run(rollouts=1, hooks=[Samples()], **given)
    again = small_run(rollouts=2, hooks=[Samples()], resume=True, **given)
    assert again.samples[: len(first.samples)] == first.samples
    assert {type(sample["prompt"]) for sample in again.samples} == {str}


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


PARTS = "{% for m in messages %}{% for p in m['content'] %}{% if p.type == 'text' %}"
PARTS += "{{ p.text }}{% endif %}{% endfor %}{% endfor %};?"  # as of vision models
DEAF = TEMPLATE.replace("m in messages", "m in messages if m['role'] == 'user'")


@pytest.mark.parametrize(
    ("template", "system", "sentence"),
    [
        (None, None, r"cannot be used: .*tokenizer\.chat_template is not set"),
        (NO_SYSTEM, "12", "cannot be used: .*no system"),
        (TEMPLATE, 3, "system must be text or None, got 3"),
        (PARTS, None, "leaves out the question"),
        (DEAF, "12", "leaves out the system message"),
    ],
)
def test_what_no_template_can_write_is_refused(template, system, sentence):
    with pytest.raises(UserError, match=sentence):
        Chat(Arithmetic(), tokenizer(template), system)
    assert Chat(Arithmetic(), tokenizer(NO_SYSTEM)).prompt("1+1=") == "1+1="
    assert Chat(Arithmetic(), tokenizer(DEAF), "").prompt("1+1=") == "=1+1=;?"


def test_switches_reach_the_template():
    made = tokenizer(TEMPLATE.replace("'?'", "'?' if thinks else '#'"))
    chat = Chat(Arithmetic(), made, switches={"thinks": True})
    assert chat.prompt("1+1=") == "+00;=1+1=;?" != Chat(Arithmetic(), made).prompt("1")
    assert repr(chat) != repr(Chat(Arithmetic(), made))
    closed = Chat(Arithmetic(), made, switches={"add_generation_prompt": False})
    assert closed.prompt("1") == Chat(Arithmetic(), made).prompt("1")


def beginning(adds_bos: bool):
    """`<unk>` is BOS, which the tokenizer writes itself or not."""
    made = make_tokenizer()
    made.bos_token = "<unk>"
    if adds_bos:
        bos = [("<unk>", made.unk_token_id)]
        processor = TemplateProcessing(single="<unk> $A", special_tokens=bos)
        made.backend_tokenizer.post_processor = processor
    return made


@pytest.mark.parametrize(
    ("adds_bos", "prompt", "read"),
    [
        (True, "12", "<unk>12"),
        (True, "<unk>12", "<unk>12"),  # the template's and the tokenizer's: one stays
        (True, "<unk><unk>1", "<unk><unk>1"),  # only one of them was added
        (False, "<unk><unk>1", "<unk><unk>1"),  # somebody meant that
        (False, "12", "12"),
    ],
)
def test_a_prompt_begins_with_one_bos(adds_bos, prompt, read):
    """Llama's template writes one, and its tokenizer adds one."""
    plain = beginning(adds_bos)
    model = random_model()
    (ids,) = encode(model, plain, [prompt], 1)
    assert "".join(plain.convert_ids_to_tokens(ids)) == read
    assert TOKENIZER.bos_token_id is None  # where there is none, nothing changes
    assert encode(model, TOKENIZER, ["1+2="], 1) == TOKENIZER(["1+2="])["input_ids"]


def test_a_chat_is_its_task_system_and_template():
    chat = Chat(Arithmetic(), tokenizer(), "12")
    longer, other = Arithmetic(max_terms=3), tokenizer(TEMPLATE + " ")
    for given in ((longer, tokenizer()), (Arithmetic(), other)):
        assert repr(chat) != repr(Chat(*given, "12"))
    for again in (copy.deepcopy(chat), pickle.loads(pickle.dumps(chat))):
        assert repr(again) == repr(chat) and hash(again) == hash(chat)
        assert again.sample(2, 0) == chat.sample(2, 0)
