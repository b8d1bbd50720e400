"""What a generator's folder may lack, and how that is said."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from storage.errors import UserError
from tasks.pseudo_queries.generate_queries import Generation
from tasks.pseudo_queries.generators.load_model import ModelSource, check_length, open_config, open_model
from tasks.pseudo_queries.generators.sampler import Sampler

CPU = torch.device("cpu")
SIZE = {"vocab_size": 20}
SEQ2SEQ = Generation(
    queries_per_passage=1, prefix="", input_max_tokens=16, top_k=1, top_p=1.0, max_new_tokens=4, seed=1,
    shard_passages=100, batch_tokens=100,
)  # fmt: skip
CAUSAL = SEQ2SEQ.model_copy(update={"prompt": "{passage} is about"})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of each kind, with a tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    t5 = T5Config(d_model=8, d_kv=4, num_heads=2, d_ff=8, num_layers=1, **SIZE)
    bert = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, **SIZE)
    gpt2 = GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=32, bos_token_id=0, eos_token_id=3, **SIZE)
    models = {
        "t5": T5ForConditionalGeneration(t5), "encoder": T5EncoderModel(copy.deepcopy(t5)), "bert": BertModel(bert),
        "gpt2": GPT2LMHeadModel(gpt2),
    }  # fmt: skip
    for name, model in models.items():
        model.save_pretrained(folder / name)
        BertTokenizer(vocab={piece: i for i, piece in enumerate("abcdefghijklmnopqrst")}).save_pretrained(folder / name)
    return folder


def opened(folder: Path, settings: Generation = SEQ2SEQ) -> Any:
    return Sampler(folder, settings, CPU, print)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gpt2", SEQ2SEQ, "prompt: .*gpt2 is a causal language model .*give it a prompt"),
        ("t5", CAUSAL, "prompt: .*t5 is a seq2seq model .*give it a prefix"),
        ("bert", CAUSAL, "config.json says model_type 'bert', which does not generate text"),
        ("encoder", SEQ2SEQ, "config.json says model_type 't5', which does not generate text"),
        ("nowhere", SEQ2SEQ, "nowhere: expected the config.json of a seq2seq or causal language model"),
        ("gpt2", CAUSAL.model_copy(update={"input_max_tokens": 29}), "has 32 positions, found 33; set it to fit"),
    ],
)
def test_settings_and_folders_that_do_not_fit_are_named(
    folders: Path, name: str, settings: Generation, message: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        opened(folders / name, settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["t5", "gpt2"])
@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("tokenizer*", "expected a tokenizer, found none of .*tokenizer.json"),
        ("model.safetensors", r"expected weights in model\.safetensors, found no such file"),
        ("config.json", "expected the config.json of a seq2seq or causal language model"),
    ],
)
def test_a_file_that_is_missing_is_named(folders: Path, name: str, removed: str, message: str, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / name, tmp_path / name)
    for file in folder.glob(removed):
        file.unlink()

    with pytest.raises(UserError, match=message):
        opened(folder, SEQ2SEQ if name == "t5" else CAUSAL)


def test_weights_that_are_missing_are_not_made_up(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "t5", tmp_path / "t5")
    weights = load_file(folder / "model.safetensors")
    lost = [name for name in weights if name.startswith("decoder.")]
    save_file(
        {name: weights[name] for name in weights.keys() - set(lost)}, folder / "model.safetensors", {"format": "pt"}
    )

    with pytest.raises(
        UserError, match=rf"{len(lost)} weights are missing \({min(lost)}, .* and {len(lost) - 3} more\)"
    ):
        opened(folder)


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_a_pickle_is_not_opened_and_nan_is_refused(folders: Path, name: str, tmp_path: Path) -> None:
    folder, settings = Path(shutil.copytree(folders / name, tmp_path / name)), SEQ2SEQ if name == "t5" else CAUSAL
    weights = load_file(folder / "model.safetensors")
    first = min(weights)
    save_file(weights | {first: weights[first].fill_(torch.nan)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=rf"{first}.*: expected finite numbers, found NaN or infinity"):
        opened(folder, settings)

    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"found only pytorch_model\.bin, a pickle, which is not opened"):
        opened(folder, settings)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_is_no_such_file_is_named(folders: Path, file: str, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "t5", tmp_path / "t5")
    (folder / file).write_text("{nonsense")

    with pytest.raises(UserError, match=r"t5: expected .*" + file):
        opened(folder)


def test_a_number_type_is_the_settings_or_the_devices(folders: Path) -> None:
    config, dtypes = open_config(folders / "t5"), ("auto", "bfloat16", "float16")
    results = [open_model(ModelSource(folders / "t5", config, dtype, CPU)).dtype for dtype in dtypes]

    assert results == [torch.float32, torch.bfloat16, torch.float16]


def test_a_model_without_an_end_or_padding_is_opened(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "gpt2", tmp_path / "gpt2")
    for file in ("config.json", "generation_config.json"):
        settings = json.loads((folder / file).read_text()) | {"eos_token_id": None, "pad_token_id": None}
        (folder / file).write_text(json.dumps(settings))

    assert opened(folder, CAUSAL).generator.ends == []


def test_models_without_absolute_positions_have_no_limit() -> None:
    check_length(Path("m"), T5Config(), 10_000, "input_max_tokens")
