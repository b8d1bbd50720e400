"""A bi-encoder in the layout of sentence-transformers (Reimers and Gurevych 2019): a Transformer, a pooling, and the
modules that map the pooled vector.

Vectors that are compared by cosine are normalised, so that the inner product is the cosine. A folder without
modules.json is a bare encoder: its vector is the hidden state of the first token, compared by inner products.

Pooling and Dense are those of the package (`pip install 'pretrieve[sentence-transformers]'`). The folder is not opened
by the package, which imports classes that modules.json names, falls back to pickles, follows adapters to other models,
and accepts an encoder's file that lacks weights. Instead modules.json is read here, and `models.hugging_face` loads the
encoder.

Shape suffixes: B batch, L length, H hidden, D dimension.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from models import hugging_face
from models.model_files import UnusableModel, check_fit, read_json, read_weights
from models.representation import Representation, Role
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.sentence_transformer_files import (
    MODULES,
    compared_by_cosine,
    list_modules,
    prompts,
    read_optional_json,
    transformer_config,
)
from models.retrievers.views.dense import DenseSettings
from models.tokens import Tokens, check_vocabulary_size, pad

ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
UNLIMITED = 2**20  # tokens: longer than any text, for encoders that state no maximum length


class SentenceTransformer(nn.Module):
    """The bi-encoder on batches of token ids: one encoder for both roles, one dense view."""

    settings = RetrieverSettings(dense=DenseSettings(dim=None))
    views = settings.views

    def __init__(
        self, encoder: nn.Module, pooling: nn.Module, head: nn.Sequential, prompt_lengths: Mapping[Role, int]
    ) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head, self.prompt_lengths = encoder, pooling, head, prompt_lengths
        if len(head) and isinstance(head[-1], Normalise):
            self.settings = RetrieverSettings(dense=DenseSettings(dim=None, normalise=True))

    def forward(self, tokens: Tokens, role: Role) -> Representation:
        """Return the texts' vectors [B, D] in float32."""
        mask_BL = tokens.mask.long()
        hidden_BLH = self.encoder(input_ids=tokens.ids, attention_mask=mask_BL).last_hidden_state.float()
        features = {
            "token_embeddings": hidden_BLH, "attention_mask": mask_BL, "prompt_length": self.prompt_lengths[role]
        }  # fmt: skip
        return Representation(dense=self.head(self.pooling(features))["sentence_embedding"])


class Normalise(nn.Module):
    """Normalises vectors to length 1."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return features | {"sentence_embedding": normalize(features["sentence_embedding"], dim=-1)}


class Reader:
    """Tokenises texts after their role's prompt, with the special tokens of the encoder's tokenizer."""

    def __init__(self, tokenizer: Any, prompts: Mapping[Role, str], max_tokens: int) -> None:
        self._tokenizer, self.prompts, self.max_tokens = tokenizer, prompts, max_tokens
        self._padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.vocab_size = max(tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, texts: Sequence[str], role: Role, max_tokens: int) -> list[list[int]]:
        """Return the token ids of each text, truncated to `max_tokens` including prompt and special tokens."""
        prompted = [self.prompts[role] + text for text in texts]
        encoding = self._tokenizer(prompted, truncation=True, max_length=min(max_tokens, self.max_tokens))
        ids: list[list[int]] = encoding["input_ids"]
        return ids

    def pad_batch(self, rows: Sequence[Sequence[int]]) -> Tokens:
        """Pad rows of ids at the end to the longest row."""
        return pad(rows, self._padding)

    def prompt_length(self, role: Role) -> int:
        """Return the number of tokens of a role's prompt, including a first [CLS] but not a final [SEP]."""
        if not self.prompts[role]:
            return 0
        ids = self._tokenizer(self.prompts[role])["input_ids"]
        return len(ids) - (ids[-1] in self._tokenizer.all_special_ids)


def load(folder: Path) -> tuple[SentenceTransformer, Reader]:
    """Load the bi-encoder of a folder in evaluation mode, and its tokenizing reader.

    Raises ValueError for unsupported modules, and for files that do not match each other.
    """
    _check_installed(folder)
    modules = list_modules(folder)
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    supported = ("Pooling", "Dense", "Normalize", "Dropout")
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[1:]) <= set(supported) or kinds.count("Pooling") > 1:
        expected = f"Transformer and Pooling, then {', '.join(supported[1:])}"
        raise ValueError(f"{folder / MODULES}: expected {expected}; found {', '.join(kinds)}")
    home = folder / modules[0]["path"]
    encoder, reader = hugging_face.load_encoder(home), load_reader(folder, home)
    check_vocabulary_size(reader.vocab_size, encoder.get_input_embeddings().num_embeddings, home)
    _limit_to_positions(reader, hugging_face.num_positions(encoder), home)
    pooling = _pooling(None if modules[1]["path"] is None else folder / modules[1]["path"], encoder.config.hidden_size)
    head = [
        _dense(folder / module["path"]) if kind == "Dense" else Normalise()
        for kind, module in zip(kinds[2:], modules[2:], strict=True)
        if kind != "Dropout"
    ]
    if compared_by_cosine(folder) and not any(isinstance(module, Normalise) for module in head[-1:]):
        head.append(Normalise())
    roles: tuple[Role, Role] = ("query", "passage")
    prompt_lengths = {role: reader.prompt_length(role) for role in roles}
    return SentenceTransformer(encoder, pooling, nn.Sequential(*head), prompt_lengths).eval(), reader


def load_reader(folder: Path, home: Path) -> Reader:
    """Return the tokenizing reader of a model's folder; `home` is the folder of its encoder."""
    from tokenizers import normalizers
    from transformers import AutoConfig, AutoTokenizer

    stated, config = transformer_config(home), AutoConfig.from_pretrained(home, trust_remote_code=False)
    tokenizer: Any = AutoTokenizer.from_pretrained(home, trust_remote_code=False)
    if not any((home / file).is_file() for file in {"tokenizer.json", *tokenizer.vocab_files_names.values()}):
        raise UnusableModel(
            f"{home}: expected a tokenizer, found no tokenizer.json; save the tokenizer of the model's training there"
        )
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or UNLIMITED]
    if (length := stated.get("max_seq_length")) is not None:
        if type(length) is not int or length < 3:
            raise UnusableModel(f"{home}: max_seq_length: expected a whole number of 3 or more, found {length!r}")
        limits = [length]
    if stated.get("do_lower_case"):
        fast = tokenizer.backend_tokenizer
        others = [] if fast.normalizer is None else [fast.normalizer]
        fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
    return Reader(tokenizer, prompts(folder), min(UNLIMITED, *limits))


def _check_installed(folder: Path) -> None:
    if importlib.util.find_spec("sentence_transformers") is None:
        raise UnusableModel(
            f"{folder}: a model in the layout of sentence-transformers, or an encoder other than BERT, needs that "
            "package; pip install 'pretrieve[sentence-transformers]'"
        )


def _limit_to_positions(reader: Reader, positions: int | None, home: Path) -> None:
    """Truncate texts to the encoder's positions; refuse a stated maximum length that exceeds them."""
    if positions is None or reader.max_tokens <= positions:
        return
    if transformer_config(home).get("max_seq_length"):
        raise UnusableModel(
            f"{home}: max_seq_length: expected at most the encoder's {positions} positions, found {reader.max_tokens}"
        )
    reader.max_tokens = positions


def num_tokens(folder: Path) -> int:
    """Return the maximum length of a text in tokens for the bi-encoder of a folder."""
    _check_installed(folder)
    return load_reader(folder, folder / list_modules(folder)[0]["path"]).max_tokens


def _pooling(folder: Path | None, hidden_size: int) -> Any:
    """Return the package's pooling with a folder's settings; by default the hidden state of the first token."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    if folder is None or not read_json(folder / "config.json", "the settings of a pooling"):
        return Pooling(hidden_size, "cls")
    try:
        return Pooling.load(str(folder), local_files_only=True, init_defaults={"embedding_dimension": hidden_size})
    except ValueError as error:
        raise UnusableModel(f"{folder / 'config.json'}: {error}") from None


def _dense(folder: Path) -> Any:
    """Return the package's linear layer with a folder's settings and weights."""
    from sentence_transformers.sentence_transformer.modules import Dense as PackageDense

    stated = read_optional_json(folder / "config.json")
    name = str(stated.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    input_name = stated.get("module_input_name", "sentence_embedding")
    if name not in ACTIVATIONS or stated.get("use_residual") or input_name != "sentence_embedding":
        raise ValueError(f"{folder}: expected a map of the pooled vector and one of {', '.join(ACTIVATIONS)}")
    activation, bias = getattr(nn, name)(), stated.get("bias", True)
    dense = PackageDense(stated["in_features"], stated["out_features"], bias=bias, activation_function=activation)
    path = folder / "model.safetensors"
    weights = read_weights(path)
    check_fit(weights, dense.state_dict(), path, "its config.json")
    dense.load_state_dict(weights)
    return dense
