"""A bi-encoder in the layout of sentence-transformers (Reimers and Gurevych 2019): an encoder of `transformers`, a
pooling, and what maps the pooled vector on.

`modules.json` lists the parts; `sentence_bert_config.json` says how much is read, `config_sentence_transformers.json`
what stands before queries and before documents, and how vectors are compared. Where they are to be compared by their
cosine, they get length 1 here: the inner product then is the cosine, and one search does for all. A folder without
modules.json is a bare encoder, whose vector is the hidden state of the first token, compared by inner products.

Shape suffixes: B batch, L length, H hidden, D dimension.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from models import hugging_face
from models.layers.pooling import POOLINGS
from models.model_files import UnusableModel, check_fit, read_json, read_weights
from models.representation import Representation, Role
from models.retrievers.retriever import RetrieverSettings
from models.retrievers.views.dense import Settings as Dense
from models.tokens import Tokens, check_vocabulary_size, pad

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
READING = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""What old releases and new ones call the file that says how much of a text is read."""
BARE: list[dict[str, Any]] = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": None}]
NAMES: Mapping[Role, Sequence[str]] = {"query": ("query",), "passage": ("document", "passage", "corpus")}
"""What a role's prompt is called; the first that is not empty counts."""
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
"""By the keys that older releases write; of several, vectors are joined in this order."""
UNBOUNDED = 2**20  # tokens: longer than any text, for encoders that name no limit


class SentenceTransformer(nn.Module):
    """Such a bi-encoder, on whole batches of token ids: the same encoder for both roles, one dense view."""

    settings = RetrieverSettings(dense=Dense(dim=None))
    views = settings.views

    def __init__(
        self, encoder: nn.Module, poolings: Sequence[str], then: nn.Sequential, skipped: Mapping[Role, int]
    ) -> None:
        super().__init__()
        self.encoder, self.poolings, self.then, self.skipped = encoder, poolings, then, skipped

    def forward(self, tokens: Tokens, role: Role) -> Representation:
        """The texts' vectors [B, D], in single precision."""
        hidden_BLH = self.encoder(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state.float()
        vectors = [POOLINGS[each](hidden_BLH, tokens.mask, self.skipped[role]) for each in self.poolings]
        return Representation(dense=self.then(torch.cat(vectors, dim=1)))


class Projection(nn.Module):
    """A linear map and what follows it."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.activation = linear, activation

    def forward(self, vectors_BD: Tensor) -> Tensor:
        mapped_BD: Tensor = self.activation(self.linear(vectors_BD))
        return mapped_BD


class Normalise(nn.Module):
    """Length 1."""

    def forward(self, vectors_BD: Tensor) -> Tensor:
        return normalize(vectors_BD, dim=-1)


class Reader:
    """Texts to token ids: the prompt, the text, and what the encoder's tokenizer puts around both."""

    def __init__(self, tokenizer: Any, prompts: Mapping[Role, str], max_tokens: int) -> None:
        self._tokenizer, self.prompts, self.max_tokens = tokenizer, prompts, max_tokens
        self._padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.vocab_size = max(tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, texts: Sequence[str], role: Role, max_tokens: int) -> list[list[int]]:
        """Ids of every text, cut at the end to so many tokens with all that is added."""
        given = [self.prompts[role] + text for text in texts]
        read = self._tokenizer(given, truncation=True, max_length=min(max_tokens, self.max_tokens))
        ids: list[list[int]] = read["input_ids"]
        return ids

    def pad_batch(self, rows: Sequence[Sequence[int]]) -> Tokens:
        """The rows, padded at the end to the longest of them."""
        return pad(rows, self._padding)

    def num_prompt_tokens(self, role: Role) -> int:
        """With what stands before a prompt, such as [CLS]; without what ends a text."""
        if not self.prompts[role]:
            return 0
        ids = self._tokenizer(self.prompts[role])["input_ids"]
        return len(ids) - (ids[-1] in self._tokenizer.all_special_ids)


def is_one(folder: Path) -> bool:
    """Whether a folder says what only sentence-transformers reads, or its encoder is no BERT of ours."""
    if any((folder / name).is_file() for name in (PROMPTS, *READING)):
        return True
    extra = len(_modules(folder)) > len(BARE)
    return extra or _json(folder / _modules(folder)[0]["path"] / "config.json").get("model_type", "bert") != "bert"


def load(folder: Path) -> tuple[SentenceTransformer, Reader]:
    """The bi-encoder of a folder, in evaluation mode, and what reads texts for it.

    Raises ValueError for other parts, and where the folder's files do not fit each other.
    """
    listed = _modules(folder)
    kinds = [str(each["type"]).rpartition(".")[2] for each in listed]
    known = ("Pooling", "Dense", "Normalize", "Dropout")
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[1:]) <= set(known) or kinds.count("Pooling") > 1:
        wanted = f"Transformer and Pooling, then {', '.join(known[1:])}"
        raise ValueError(f"{folder / MODULES}: expected {wanted}; found {', '.join(kinds)}")
    home = folder / listed[0]["path"]
    encoder, reader = hugging_face.load_encoder(home), load_reader(folder, home)
    check_vocabulary_size(reader.vocab_size, encoder.get_input_embeddings().num_embeddings, home)
    _limit(reader, hugging_face.num_positions(encoder), home)
    pooling = {} if listed[1]["path"] is None else _json(folder / listed[1]["path"] / "config.json")
    skips = pooling.get("include_prompt", True) is False
    roles: tuple[Role, Role] = ("query", "passage")
    skipped = {role: reader.num_prompt_tokens(role) if skips else 0 for role in roles}
    then = [
        _projection(folder / each["path"]) if kind == "Dense" else Normalise()
        for kind, each in zip(kinds[2:], listed[2:], strict=True)
        if kind != "Dropout"
    ]
    if compared_by_cosine(folder) and not any(isinstance(each, Normalise) for each in then[-1:]):
        then.append(Normalise())
    made = SentenceTransformer(encoder, poolings(pooling), nn.Sequential(*then), skipped)
    return made.eval(), reader


def load_reader(folder: Path, home: Path) -> Reader:
    """What reads texts for the encoder that lies at `home` in a folder."""
    from tokenizers import normalizers
    from transformers import AutoConfig, AutoTokenizer

    said, config = reading(home), AutoConfig.from_pretrained(home, trust_remote_code=False)
    tokenizer: Any = AutoTokenizer.from_pretrained(home, trust_remote_code=False)
    if not any((home / file).is_file() for file in {"tokenizer.json", *tokenizer.vocab_files_names.values()}):
        raise UnusableModel(
            f"{home}: expected a tokenizer, found no tokenizer.json; save there what the model was trained with"
        )
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or UNBOUNDED]
    if (stated := said.get("max_seq_length")) is not None:
        if type(stated) is not int or stated < 3:
            raise UnusableModel(f"{home}: max_seq_length: expected a whole number of 3 or more, found {stated!r}")
        limits = [stated]
    if said.get("do_lower_case"):
        fast = tokenizer.backend_tokenizer
        others = [] if fast.normalizer is None else [fast.normalizer]
        fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
    return Reader(tokenizer, prompts(folder), min(UNBOUNDED, *limits))


def _limit(reader: Reader, positions: int | None, home: Path) -> None:
    """Have no text read that is longer than the encoder has positions; refuse one that is said to read such texts."""
    if positions is None or reader.max_tokens <= positions:
        return
    if reading(home).get("max_seq_length"):
        raise UnusableModel(
            f"{home}: max_seq_length: expected at most the encoder's {positions} positions, found {reader.max_tokens}"
        )
    reader.max_tokens = positions


def num_tokens(folder: Path) -> int:
    """How many tokens of a text the bi-encoder of a folder reads at most."""
    return load_reader(folder, folder / _modules(folder)[0]["path"]).max_tokens


def prompts(folder: Path) -> dict[Role, str]:
    """What is put before a text of each role."""
    given = _json(folder / PROMPTS).get("prompts") or {}

    def prompt(role: Role) -> str:
        return next((str(given[name]) for name in NAMES[role] if given.get(name)), "")

    return {"query": prompt("query"), "passage": prompt("passage")}


def compared_by_cosine(folder: Path) -> bool:
    """Whether vectors are compared by their cosine: also where a file of prompts says nothing of it."""
    if not (folder / MODULES).is_file():
        return False
    found = _json(folder / PROMPTS).get("similarity_fn_name") or "cosine"
    if found not in ("cosine", "dot"):
        raise ValueError(f"{folder / PROMPTS}: expected vectors compared by cosine or dot, found {found}")
    return bool(found == "cosine")


def reading(home: Path) -> Mapping[str, Any]:
    """What the file that says how texts are read has; empty where there is none."""
    return next((_json(home / name) for name in READING if (home / name).is_file()), {})


def poolings(said: Mapping[str, Any]) -> list[str]:
    """What is made of the hidden states, by the words that `POOLINGS` knows."""
    if not said:
        return ["cls"]
    found = said.get("pooling_mode") or [name for key, name in OLD_POOLINGS.items() if said.get(key)] or "mean"
    names = [found] if isinstance(found, str) else list(found)
    if unknown := set(names) - set(POOLINGS):
        raise ValueError(f"pooling: expected some of {', '.join(POOLINGS)}, found {min(unknown)}")
    return names


def _projection(folder: Path) -> Projection:
    said = _json(folder / "config.json")
    name = str(said.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    of = said.get("module_input_name", "sentence_embedding")
    if name not in ACTIVATIONS or said.get("use_residual") or of != "sentence_embedding":
        raise ValueError(f"{folder}: expected a map of the pooled vector and one of {', '.join(ACTIVATIONS)}")
    linear = nn.Linear(said["in_features"], said["out_features"], bias=said.get("bias", True))
    path = folder / "model.safetensors"
    found = {name.removeprefix("linear."): value for name, value in read_weights(path).items()}
    check_fit(found, linear.state_dict(), path, "its config.json")
    linear.load_state_dict(found)
    return Projection(linear, getattr(nn, name)())


def _modules(folder: Path) -> list[dict[str, Any]]:
    """What modules.json lists; each has a type, and a path within the folder."""
    path = folder / MODULES
    if not path.is_file():
        return BARE
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableModel(f"{path}: expected a list of modules, found none that can be read ({error})") from None
    if not isinstance(listed, list) or not all(map(_is_module, listed)):
        raise UnusableModel(
            f"{path}: expected a list of modules, each with a type and a path within the model's folder"
        )
    return listed or BARE


def _is_module(value: Any) -> bool:
    """Whether an entry of modules.json names a type and a folder that is not outside the model's."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("type", "path")):
        return False
    return not Path(value["path"]).is_absolute() and ".." not in Path(value["path"]).parts


def _json(path: Path) -> dict[str, Any]:
    """What a file says; empty where there is none."""
    return read_json(path, "settings of sentence-transformers") if path.is_file() else {}
