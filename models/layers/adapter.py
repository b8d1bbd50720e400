"""An encoder of `transformers` as a `Backbone`: what the families in `models.families` have in common.

The layers of most families compute the real tokens of a batch only, as one row (`models.layers.packed_attention`);
embeddings are computed here from the family's own parameters, since its code derives positions from padding.

Shape suffixes: B batch, L length, P positions, H hidden, E size of word embeddings, V vocabulary, N real tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from models.hugging_face import HEAD_NAMES, quiet_transformers
from models.layers import packed_attention
from models.layers.backbone import Backbone
from models.layers.bert_config import CONFIG, BertConfig
from models.layers.unpadding import Packing
from models.model_files import UNUSED, check_finite, check_names, check_safetensors, read_json, refuse_unusable
from models.tokens import Tokens

HIDDEN_DROPOUT = ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout")
ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")
"""The names of dropout rates in the configurations of all families."""


class Adapter(Backbone):
    """A masked language model of `transformers`; a family states where its parts are."""

    body: ClassVar[str]
    """The encoder's name in the model with its head."""
    stack: ClassVar[str] = "encoder.layer"
    """The path of the layers within the encoder."""
    embedding_norm: ClassVar[str] = "LayerNorm"
    embedding_dropout: ClassVar[str] = "dropout"
    names: ClassVar[Mapping[str, str]] = {}
    """The family's names of sizes that have others than BERT's."""
    begins_after_padding: ClassVar[bool] = False
    """Whether position embeddings begin after the id of the padding token, as in fairseq."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.config = self._sizes(network.config)
        packed_attention.register()
        network.config._attn_implementation = packed_attention.NAME

    @classmethod
    def sizes(cls, folder: Path) -> BertConfig:
        own = cls._configuration(folder)
        with refuse_unusable(folder):
            return cls._sizes(own)

    @classmethod
    def create(cls, config: BertConfig, folder: Path, layers: Sequence[int] | None = None) -> Self:
        from transformers import AutoModelForMaskedLM

        own = cls._configuration(folder)
        if config.vocab_size != own.vocab_size:
            raise ValueError(f"vocabulary: only that of a BERT can be reduced, found {own.model_type}; expected null")
        _set(own, HIDDEN_DROPOUT, config.hidden_dropout_prob)
        _set(own, ATTENTION_DROPOUT, config.attention_probs_dropout_prob)
        with refuse_unusable(folder):
            model = cls(cast(Any, AutoModelForMaskedLM).from_config(own, dtype=torch.float32))
        model.keep(layers)
        return model

    @classmethod
    def load(cls, folder: Path, *, layers: Sequence[int] | None = None) -> Self:
        from transformers import AutoModelForMaskedLM

        cls.sizes(folder)
        check_safetensors(folder)
        with quiet_transformers(), refuse_unusable(folder):
            network, report = AutoModelForMaskedLM.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
            )
        missing = {name for name in report["missing_keys"] if not UNUSED.search(name)}
        encoder = {id(parameter) for parameter in getattr(network, cls.body).parameters()}
        head = {name for name, parameter in network.named_parameters() if id(parameter) not in encoder}
        if has_new_head := missing >= head:
            missing = {name for name in missing if name.startswith(f"{cls.body}.")}
        unexpected = [name for name in report["unexpected_keys"] if not (UNUSED.search(name) or HEAD_NAMES.match(name))]
        check_names(missing, unexpected, folder, CONFIG)
        check_finite(network.state_dict(), folder)
        model = cls(network)
        model.has_new_head = has_new_head
        model.keep(layers)
        return model

    def save(self, folder: Path) -> None:
        with quiet_transformers():
            self.network.save_pretrained(folder)

    def keep(self, layers: Sequence[int] | None) -> None:
        """Remove all layers but those with the given indices, counted from 0; None keeps all."""
        kept = self.config.kept(layers)
        path, _, name = self.stack.rpartition(".")
        setattr(self.encoder.get_submodule(path), name, nn.ModuleList(self.layers[number] for number in kept))
        self.network.config.num_hidden_layers = len(kept)
        self.config = self._sizes(self.network.config)

    def configure_dropout(self, rate: float) -> None:
        _set(self.network.config, (*HIDDEN_DROPOUT, *ATTENTION_DROPOUT), rate)
        self.config = self._sizes(self.network.config)

    def set_dropout(self, rate: float) -> None:
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = rate
            elif isinstance(getattr(module, "attention_dropout", None), float):
                cast(Any, module).attention_dropout = rate

    @property
    def encoder(self) -> Any:
        """The encoder without the head."""
        return getattr(self.network, self.body)

    @property
    def layers(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self.encoder.get_submodule(self.stack))

    @property
    def words(self) -> Tensor:
        return cast(Tensor, self.network.get_input_embeddings().weight)

    @property
    def positions(self) -> Tensor | None:
        table_PE = self._position_table()
        return table_PE if table_PE is not None and table_PE.shape[1] == self.config.hidden_size else None

    @property
    def output(self) -> tuple[Tensor, Tensor | None]:
        decoder = self.network.get_output_embeddings()
        return decoder.weight, decoder.bias

    def embed(self, ids_BL: Tensor) -> Tensor:
        length, longest = ids_BL.shape[1], self.config.max_position_embeddings
        if length > longest:
            raise ValueError(f"a text has {length} tokens, but the model only {longest} positions; lower max_tokens")
        words_BLE, table_PE = self.network.get_input_embeddings()(ids_BL), self._position_table()
        return self.embed_sums(words_BLE if table_PE is None else words_BLE + table_PE[:length])

    def embed_sums(self, sums_BLH: Tensor) -> Tensor:
        embeddings = self.encoder.embeddings
        types = getattr(embeddings, "token_type_embeddings", None)
        normed_BLH = getattr(embeddings, self.embedding_norm)(sums_BLH if types is None else sums_BLH + types.weight[0])
        return cast(Tensor, getattr(embeddings, self.embedding_dropout)(normed_BLH))

    def run(self, layers: Iterable[nn.Module], hidden_NH: Tensor, packing: Packing) -> Tensor:
        hidden_1NH = hidden_NH[None]
        for layer in layers:
            hidden_1NH = layer(hidden_1NH, attention_mask=packing)
        return hidden_1NH[0]

    def final_norm(self, hidden_NH: Tensor) -> Tensor:
        """Return the states unchanged: each layer of a post-norm family ends with a normalisation."""
        return hidden_NH

    def forward(self, tokens: Tokens) -> Tensor:
        packing = Packing(tokens.mask, unattended_BL=tokens.unattended, positions_N=tokens.positions)
        hidden_NH = self.run(self.layers, packing.packed(self.embed(tokens.ids)), packing)
        return packing.padded(self.final_norm(hidden_NH))

    def first_states(self, tokens: Tokens) -> Tensor:
        hidden_BLH: Tensor = self(tokens)
        return hidden_BLH[:, 0]

    def _position_table(self) -> Tensor | None:
        """Return the embeddings [P, E] of absolute positions, from that of a text's first token; None without any."""
        table = getattr(self.encoder.embeddings, "position_embeddings", None)
        return None if table is None else table.weight[self._first_position(self.network.config) :]

    @classmethod
    def _configuration(cls, folder: Path) -> Any:
        """Read config.json; ValueError for one that cannot be used."""
        from transformers import AutoConfig

        read_json(folder / CONFIG, "the configuration of an encoder")
        with refuse_unusable(folder):
            own = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if getattr(own, "position_embedding_type", "absolute") != "absolute":
            raise ValueError(f"{folder / CONFIG}: expected position_embedding_type absolute")
        return own

    @classmethod
    def _first_position(cls, own: Any) -> int:
        return int(own.pad_token_id) + 1 if cls.begins_after_padding else 0

    @classmethod
    def _sizes(cls, own: Any) -> BertConfig:
        """Return the sizes of a configuration of `transformers`."""
        given = {name: getattr(own, cls.names.get(name, name), None) for name in BertConfig.__dataclass_fields__}
        given |= {"type_vocab_size": None, "max_position_embeddings": None}
        longest = own.max_position_embeddings - cls._first_position(own)
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return BertConfig(**values, max_position_embeddings=longest)


def _set(own: Any, names: Iterable[str], rate: float) -> None:
    """Set the dropout rates that a configuration has."""
    for name in names:
        if hasattr(own, name):
            setattr(own, name, rate)
