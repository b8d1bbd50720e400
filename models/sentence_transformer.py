"""A bi-encoder in the layout of sentence-transformers (Reimers and Gurevych 2019): an encoder of `transformers`, a
pooling, and what maps the pooled vector on.

`modules.json` lists the parts; `sentence_bert_config.json` says how much is read, `config_sentence_transformers.json`
what stands before queries and before documents, and how vectors are compared. Where they are to be compared by their
cosine, they get length 1 here: the inner product then is the cosine, and one search does for all. A folder without
modules.json is a bare encoder, whose vector is the hidden state of the first token, compared by inner products.

Shape suffixes: B batch, L length, H hidden, D dimension.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from models.poolings import POOLINGS
from models.representation import Representation, Role
from models.retriever import Settings
from models.tokens import Tokens, pad
from models.views.dense import Settings as Dense

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
READING = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""What old releases and new ones call the file that says how much of a text is read."""
BARE: list[dict[str, Any]] = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": None}]
ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
"""Of models that also have a decoder, by model_type, the class that has none."""
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

    settings = Settings(dense=Dense(dim=None))
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
    """The bi-encoder of a folder, in evaluation mode, and what reads texts for it; a ValueError for other parts."""
    listed = _modules(folder)
    kinds = [str(each["type"]).rpartition(".")[2] for each in listed]
    known = ("Pooling", "Dense", "Normalize", "Dropout")
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[1:]) <= set(known) or kinds.count("Pooling") > 1:
        wanted = f"Transformer and Pooling, then {', '.join(known[1:])}"
        raise ValueError(f"{folder / MODULES}: expected {wanted}; found {', '.join(kinds)}")
    home = folder / listed[0]["path"]
    reader = load_reader(folder, home)
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
    made = SentenceTransformer(_encoder(home), poolings(pooling), nn.Sequential(*then), skipped)
    return made.eval(), reader


def load_reader(folder: Path, home: Path) -> Reader:
    """What reads texts for the encoder that lies at `home` in a folder."""
    from tokenizers import normalizers
    from transformers import AutoConfig, AutoTokenizer

    said, config = reading(home), AutoConfig.from_pretrained(home)
    tokenizer: Any = AutoTokenizer.from_pretrained(home)
    limits = [int(said["max_seq_length"])] if said.get("max_seq_length") else [tokenizer.model_max_length]
    if not said.get("max_seq_length"):
        limits.append(getattr(config, "max_position_embeddings", None) or UNBOUNDED)
    if said.get("do_lower_case"):
        fast = tokenizer.backend_tokenizer
        others = [] if fast.normalizer is None else [fast.normalizer]
        fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
    return Reader(tokenizer, prompts(folder), min(UNBOUNDED, *limits))


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
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder}: expected weights in model.safetensors; save the model as safetensors")
    found = load_file(folder / "model.safetensors")
    linear.load_state_dict({key.removeprefix("linear."): value for key, value in found.items()})
    return Projection(linear, getattr(nn, name)())


def _encoder(home: Path) -> nn.Module:
    import transformers

    if not [*home.glob("model*.safetensors")]:
        raise ValueError(f"{home}: expected weights in model.safetensors; save the model as safetensors")
    name = ENCODERS.get(str(_json(home / "config.json").get("model_type")), "AutoModel")
    with quietly():
        found: nn.Module = getattr(transformers, name).from_pretrained(home, use_safetensors=True, dtype=torch.float32)
    return found


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what `transformers` says of weights that an encoder has beside or has not, such as a pooler's."""
    from transformers.utils import logging

    loudness = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(loudness)


def _modules(folder: Path) -> list[dict[str, Any]]:
    if not (folder / MODULES).is_file():
        return BARE
    listed: list[dict[str, Any]] = json.loads((folder / MODULES).read_text())
    return listed or BARE


def _json(path: Path) -> dict[str, Any]:
    """What a file says; empty where there is none."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value
