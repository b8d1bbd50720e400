"""The definition of a stage, and a call of it, whose key names the artifact before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import update_wrapper
from typing import Any, Generic, TypeVar

from storage.artifact import Artifact, Source, key_of
from storage.settings import Settings
from storage.tables import Table

T = TypeVar("T", bound=Table)
Input = Artifact[Any] | Source | Sequence[Artifact[Any]] | None


class StageDefinition(Generic[T]):
    """The body of a stage, which fills a folder, with its version and the table that it writes."""

    def __init__(
        self, body: Callable[..., None], version: int, table: type[T], trains: bool, gpu: Callable[[Any], bool]
    ) -> None:
        update_wrapper(self, body)  # type: ignore[arg-type]  # the call of `Stage` has another signature
        self.body, self.version, self.table, self.trains, self.gpu = body, version, table, trains, gpu
        self.name: str = body.__name__
        parameters = inspect.signature(body).parameters
        self.parameters = [name for name in parameters if name not in ("out", "settings")]
        optional = ("| None", "Optional[")  # as an annotation is written, or printed where it is not a string
        self._required = [
            name for name in self.parameters if not any(form in str(parameters[name].annotation) for form in optional)
        ]

    def bind(self, *only: Input, **inputs: Input) -> list[Input]:
        """Return inputs that are given by name in the order of the body; the only input of a stage needs no name."""
        if only and len(only) == len(self.parameters) == 1:
            return list(only)
        if only or not set(self._required) <= set(inputs) <= set(self.parameters):
            named = [*("an input without a name" for _ in only), *inputs]
            raise TypeError(f"{self.name} takes the inputs {self.parameters} by name, got {named}")
        return [inputs.get(name) for name in self.parameters]


class Job:
    """One call of a stage."""

    def __init__(
        self, stage: StageDefinition[Any], inputs: Sequence[Input], settings: Settings | None, round_: str = ""
    ) -> None:
        if len(inputs) != len(stage.parameters):
            raise TypeError(f"{stage.name} takes {stage.parameters}, got {len(inputs)} inputs")
        self.stage, self.inputs, self.settings, self.round = stage, inputs, settings, round_
        self.values: dict[str, Any] = settings.model_dump(mode="json") if settings else {}
        self.references = {name: _reference(value) for name, value in zip(stage.parameters, inputs, strict=True)}
        self.key = key_of(stage.name, stage.version, self.values, self.references)

    @property
    def reference(self) -> str:
        """The name of its artifact in the inputs of other stages: `<stage>/<key>`."""
        return f"{self.stage.name}/{self.key}"

    @property
    def label(self) -> str:
        """Stage, round and the first characters of the key, for people."""
        return f"{self.stage.name}{f' ({self.round})' if self.round else ''} {self.key[:8]}"

    @property
    def needs_gpu(self) -> bool:
        """Return whether workers with a GPU run it."""
        return self.stage.gpu(self.settings)

    def needs(self) -> list[str]:
        """Return the references of the artifacts that must be complete before it can be built."""
        return [artifact.reference for artifact in self.artifacts()]

    def artifacts(self) -> Iterator[Artifact[Any]]:
        """Yield its inputs that are artifacts, those in lists too."""
        for value in self.inputs:
            for member in value if isinstance(value, Sequence) else [value]:
                if isinstance(member, Artifact):
                    yield member


def needed_references(jobs: Iterable[Job]) -> set[str]:
    """Return the references of jobs and of their inputs, among them older artifacts that no job of these builds."""
    return {reference for job in jobs for reference in (job.reference, *job.needs())}


def _reference(value: Input) -> Any:
    if value is None or isinstance(value, (Artifact, Source)):
        return value.reference if value else None
    return [artifact.reference for artifact in value]
