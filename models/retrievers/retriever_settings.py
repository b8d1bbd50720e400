"""The settings of a retriever: its views, and the prompts before its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import TypeAdapter

from models.representation import Role
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.late import LateSettings
from models.retrievers.views.lexical import LexicalSettings
from models.settings import VALIDATED, omitted_at

ViewName = Literal["dense", "late", "lexical"]
VIEWS: tuple[str, ...] = get_args(ViewName)


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Texts before queries and passages, such as an instruction or `query: `; each ends with its own blank."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    query: str
    passage: str

    def of(self, role: Role) -> str:
        """Return the prompt of a role."""
        return self.query if role == "query" else self.passage


@dataclass(frozen=True, kw_only=True)
class RetrieverSettings:
    """The views of a retriever, of which at least one is set, and the prompts before its texts."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    dense: DenseSettings | None = None
    """One vector."""
    late: LateSettings | None = None
    """A vector for each token."""
    lexical: LexicalSettings | None = None
    """A weight for each WordPiece token."""
    shared_layers: int | None = None
    """The number of layers shared by all views, with private layers above (CAME, section 3.2). Null: all are shared."""
    prompts: Annotated[Prompts | None, omitted_at(None)] = None
    """The prompts of queries and passages; null for the prompts of the initial checkpoint, if it has any."""

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError(f"expected at least one of {', '.join(VIEWS)}")
        if self.lexical and self.late and self.late.markers:
            raise ValueError("late.markers: no source says whether markers have lexical weights; expected false")

    @property
    def views(self) -> tuple[str, ...]:
        """Return the names of the views that are set."""
        return tuple(view for view in VIEWS if getattr(self, view) is not None)

    @property
    def parts(self) -> tuple[object, ...]:
        """Return the settings that decide which parameters views have: equal parts can load each other's parameters."""
        late = self.late and (self.late.dim, self.late.bias)
        head = self.lexical and self.lexical.head
        dense = self.dense and (self.dense.dim, self.dense.bias)
        return self.views, self.shared_layers, dense, late, head

    @property
    def normalises(self) -> bool:
        """Return whether dense vectors have length 1."""
        return self.dense is not None and bool(self.dense.normalise)

    def prompted(self, texts: Sequence[str], role: Role) -> Sequence[str]:
        """Return the texts after the prompt of their role."""
        prompt = self.prompts.of(role) if self.prompts else ""
        return [prompt + text for text in texts] if prompt else texts

    def with_defaults(self, initial: RetrieverSettings) -> RetrieverSettings:
        """Return the settings with what they leave open as in those of an initial checkpoint."""
        dense, prompts = self.dense, self.prompts or initial.prompts
        if dense and dense.normalise is None and initial.dense:
            dense = replace(dense, normalise=initial.dense.normalise)
        return replace(self, dense=dense, prompts=prompts)

    def of_encoder(self) -> RetrieverSettings | None:
        """Return the settings that an encoder keeps through a pre-training; None if these are the defaults."""
        kept = RetrieverSettings(dense=DenseSettings(dim=None, normalise=self.normalises or None), prompts=self.prompts)
        return None if kept == RetrieverSettings(dense=DenseSettings(dim=None)) else kept

    def as_json(self) -> dict[str, Any]:
        """Return the content of `retriever.json`; `read` is its inverse."""
        value: dict[str, Any] = TypeAdapter(RetrieverSettings).dump_python(self, mode="json")
        return value

    @staticmethod
    def read(value: Mapping[str, Any]) -> RetrieverSettings:
        """Return the settings of a `retriever.json`'s content; TypeError or ValueError for invalid content."""
        kinds: dict[str, Any] = {"dense": DenseSettings, "late": LateSettings, "lexical": LexicalSettings}
        views = {view: kind(**value[view]) for view, kind in kinds.items() if value.get(view) is not None}
        prompts = None if value.get("prompts") is None else Prompts(**value["prompts"])
        return RetrieverSettings(**views, shared_layers=value.get("shared_layers"), prompts=prompts)
