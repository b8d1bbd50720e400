"""A retriever: towers that read texts, and up to three views of what they make of them, each with its own similarity.

Which views there are is all that sets the retrievers of the papers apart: `dense` alone is DPR, `lexical` SPLADE,
`late` ColBERT, `late` with exact matches and `dense` COIL. Dense and lexical are CoT-MoTE's hybrid, and, projected
and cut to the largest weights, DupMAE's representation. In CAME's mixture all three read layers of their own above
common ones (`shared_layers`). A pair's score is the weighted sum of its views' scores.

A checkpoint's folder holds the towers as Hugging Face has them, `retriever.json`, which says what the views are, and
`retriever.safetensors`, what they learned besides the encoders. A folder without them is a plain BERT: dense.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import CONFIG
from models.layers.cls_only import cls_states
from models.model_files import UnusableModel, check_fit, read_json, read_weights, refuse_unusable
from models.representation import Representation, Role
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.came import Experts
from models.retrievers.views import dense, late, lexical
from models.retrievers.views.dense import Settings as Dense
from models.retrievers.views.late import Settings as Late
from models.retrievers.views.lexical import Settings as Lexical
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens

SETTINGS, WEIGHTS = "retriever.json", "retriever.safetensors"
HEADS, PROJECTION = "heads.safetensors", "projection.weight"
"""What a pre-training learned besides the encoder: decoders and heads, by their names in the paper's file."""

View = Literal["dense", "late", "lexical"]
VIEWS: tuple[str, ...] = get_args(View)
SUM = "sum"


@dataclass(frozen=True, kw_only=True)
class RetrieverSettings:
    """Which views a retriever has."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    dense: Dense | None = None
    """One vector."""
    late: Late | None = None
    """A vector for each token."""
    lexical: Lexical | None = None
    """A weight for each WordPiece token."""
    shared_layers: int | None = None
    """Layers that all views read; above them each has its own (CAME, section 3.2). Null: all read the same."""

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError(f"expected one of {', '.join(VIEWS)} at least")

    @property
    def views(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(view for view in VIEWS if getattr(self, view) is not None)

    @property
    def parts(self) -> tuple[object, ...]:
        """The settings that decide which weights exist besides the encoders, and whether they can be continued."""
        late = self.late and (self.late.dim, self.late.bias)
        head = self.lexical and self.lexical.head
        return self.views, self.shared_layers, self.dense and self.dense.dim, late, head

    @staticmethod
    def read(value: Mapping[str, Any]) -> RetrieverSettings:
        """What `retriever.json` says."""
        kinds: dict[str, Any] = {"dense": Dense, "late": Late, "lexical": Lexical}
        views = {view: kind(**value[view]) for view, kind in kinds.items() if value.get(view) is not None}
        return RetrieverSettings(**views, shared_layers=value.get("shared_layers"))


class Retriever(nn.Module):
    """Towers and views. Heads that a view learns are the same for queries and passages; experts are a tower's own."""

    def __init__(self, encoder: DenseEncoder, settings: RetrieverSettings, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.encoder, self.settings = encoder, settings
        config = encoder.passage.config
        made: dict[str, nn.Module] = {}
        if settings.dense:
            made["dense"] = dense.View(config, settings.dense, tokenizer, encoder.pooling)
        if settings.late:
            made["late"] = late.View(config, settings.late, tokenizer)
        if settings.lexical:
            made["lexical"] = lexical.View(config, settings.lexical, tokenizer)
        self.heads = nn.ModuleDict(made)
        self.experts = nn.ModuleDict()
        if settings.shared_layers is not None:
            if (found := towers.sharing(encoder)) not in ("siamese", "separate"):
                raise ValueError(f"shared_layers: expected towers that are siamese or separate, found {found}")
            for role, tower in self._towers():
                self.experts[role] = Experts(tower, self.views, settings.shared_layers)

    @property
    def views(self) -> tuple[str, ...]:
        """Those that it has."""
        return self.settings.views

    @property
    def late(self) -> late.View | None:
        """The view that needs to know of the tokens themselves."""
        return cast(late.View, self.heads["late"]) if self.settings.late else None

    @property
    def lexical(self) -> lexical.View | None:
        """The view with a weight for each WordPiece token."""
        return cast(lexical.View, self.heads["lexical"]) if self.settings.lexical else None

    def forward(self, tokens: Tokens, role: Role) -> Representation:
        """All views of a batch of texts."""
        read = self.late.augmented(tokens, role) if self.late else tokens
        tower, found = self.encoder.tower(role), Representation()
        for view, hidden_BLH in self._hidden(tower, read, role).items():
            made: Representation = self.heads[view](hidden_BLH, read, role, tower)
            found = dataclasses.replace(found, **{name: part for name, part in vars(made).items() if part is not None})
        return found

    def scores(self, queries: Representation, passages: Representation) -> dict[str, Tensor]:
        """[Q, P] by view, and last their weighted sum."""
        found = {view: cast(Any, self.heads[view]).similarity(queries, passages) for view in self.views}
        weighted = [getattr(self.settings, view).weight * found[view] for view in self.views]
        return {**found, SUM: torch.stack(weighted).sum(0)}

    def own(self) -> dict[str, nn.Parameter]:
        """Return what is learned besides the encoders, by name."""
        return {name: each for name, each in self.named_parameters() if not name.startswith("encoder.")}

    def _hidden(self, tower: BertForMaskedLM, tokens: Tokens, role: Role) -> dict[str, Tensor]:
        """The last layer's states [B, L, H] that each view reads; [B, 1, H] where that is [CLS] alone."""
        if self.settings.shared_layers is not None:
            experts = self.experts[role if role in self.experts else "passage"]
            found: dict[str, Tensor] = experts(tower, tokens)
            return found
        if self.views == ("dense",) and self.encoder.pooling == "cls":
            return {"dense": cls_states(tower.bert, tokens.ids, tokens.mask)[:, None]}
        hidden_BLH = tower.bert(tokens.ids, tokens.mask, unattended_BL=tokens.unattended)
        return dict.fromkeys(self.views, hidden_BLH)

    def _towers(self) -> Iterator[tuple[Role, BertForMaskedLM]]:
        yield "passage", self.encoder.passage
        if self.encoder.query is not self.encoder.passage:
            yield "query", self.encoder.query


def save(retriever: Retriever, folder: Path) -> None:
    """Write a retriever to a checkpoint's folder; the tokenizer's files are not written."""
    towers.save(retriever.encoder, folder)
    (folder / SETTINGS).write_text(json.dumps(dataclasses.asdict(retriever.settings), indent=1) + "\n")
    if own := retriever.own():
        save_file({name: each.detach().cpu().contiguous() for name, each in own.items()}, folder / WEIGHTS)


def load(folder: Path) -> Retriever:
    """The retriever of a checkpoint's folder, in evaluation mode."""
    retriever = _opened(folder, read_settings(folder))
    _load_own_parameters(retriever, folder)
    return retriever.eval()


def load_for_training(folder: Path, settings: RetrieverSettings) -> Retriever:
    """Load a retriever for training: with the folder's views where they learned the same parts, else new ones.

    New experts are copies of the towers' layers; a lexical view's own matrix is that of DupMAE's pre-training, where
    there was one; what else a view learns starts at random.
    """
    retriever = _opened(folder, settings)
    if (folder / SETTINGS).is_file() and read_settings(folder).parts == settings.parts:
        _load_own_parameters(retriever, folder)
    elif retriever.lexical and retriever.lexical.projection and (folder / HEADS).is_file():
        pretrained, own = read_weights(folder / HEADS), retriever.lexical.projection.weight
        if found := {name: each for name, each in pretrained.items() if name == PROJECTION}:
            check_fit(found, {PROJECTION: own}, folder / HEADS, CONFIG)
            with torch.no_grad():
                own.copy_(found[PROJECTION])
    return retriever


def _opened(folder: Path, settings: RetrieverSettings) -> Retriever:
    """The towers of a folder, with views that are still to be filled."""
    with refuse_unusable(folder):
        encoder, tokenizer = towers.load(folder), Tokenizer.load(folder)
        tokenizer.check_vocabulary_size(encoder.passage.config.vocab_size, folder)
        return Retriever(encoder, settings, tokenizer)


def read_settings(folder: Path) -> RetrieverSettings:
    """The views of a checkpoint's folder."""
    path = folder / SETTINGS
    if not path.is_file():
        return RetrieverSettings(dense=Dense(dim=None))
    value = read_json(path, "the views of a retriever")
    try:
        return RetrieverSettings.read(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise UnusableModel(f"{path}: expected the views of a retriever: {error}") from None


def _load_own_parameters(retriever: Retriever, folder: Path) -> None:
    own, path = retriever.own(), folder / WEIGHTS
    found = read_weights(path) if own or path.is_file() else {}
    check_fit(found, own, path, SETTINGS)
    with torch.no_grad():
        for name, each in own.items():
            each.copy_(found[name])
