"""Models from outside the store are opened before anything is built: a broken one is reported before hours of work."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store.sources import Absent
from tasks.job import Job
from tasks.pretraining.convert_weights import convert_folder, convert_weights, is_pickled
from tasks.session import Session

Opener = Callable[[Path, Any], object]


def check_models(jobs: Mapping[str, Job], plan: Session) -> None:
    """Open each model that those of a plan's jobs which are to be built read from outside the store; drop it again.

    Raises `UserError`, one line, for a model that is broken or does not fit the stage's settings.
    """
    opened: set[tuple[Opener, Path, object]] = set()
    for reference, job in jobs.items():
        if not plan.done[reference].cached and (model := _given(job, plan)) is not None:
            opener = OPENERS[job.stage.name][1]
            once = opener, model.path, None if opener is _retriever else str(job.settings)
            if once not in opened:
                with _readable(model.path) as folder:
                    opener(folder, job.settings)
                opened.add(once)


def _given(job: Job, plan: Session) -> Source | None:
    """Return the model from outside that a job reads, before it is converted; None where it reads none."""
    if job.stage.name not in OPENERS:
        return None
    model = job.inputs[job.stage.parameters.index(OPENERS[job.stage.name][0])]
    if isinstance(model, Artifact) and model.stage == convert_weights.name:
        model = plan.jobs[model.reference].inputs[0]
    return model if isinstance(model, Source) and not isinstance(model, Absent) else None


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[Path]:
    """Yield a model's folder, or a temporary one with its weights as safetensors where they are pickled."""
    if not is_pickled(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="pretrieve-") as name:
        converted = Path(name) / folder.name
        convert_folder(folder, converted)
        try:
            yield converted
        except UserError as error:
            raise UserError(str(error).replace(str(converted), str(folder))) from None


def _backbone(folder: Path, settings: Any) -> None:
    from tasks.pretraining.initialise import open_backbone

    open_backbone(folder, settings)


def _retriever(folder: Path, settings: Any) -> None:
    from tasks.retrieval.encode import open_retriever

    open_retriever(folder)


def _teacher(folder: Path, settings: Any) -> None:
    from tasks.cross_encoder.pairs import load_teacher

    load_teacher(folder, settings, "teacher")


def _start_of_teacher(folder: Path, settings: Any) -> None:
    from tasks.cross_encoder.train_teacher import load_initial_encoder

    load_initial_encoder(folder, settings)


def _generator(folder: Path, settings: Any) -> None:
    from torch import device

    from tasks.pseudo_queries.generators.text_generator import load_generator

    load_generator(folder, settings, device("cpu"))


def _start_of_generator(folder: Path, settings: Any) -> None:
    from torch import device

    from tasks.pseudo_queries.generators.seq2seq_batches import Seq2SeqTokenizer

    Seq2SeqTokenizer(folder, settings, device("cpu"))


OPENERS: Mapping[str, tuple[str, Opener]] = {
    "initialise": ("weights", _backbone),
    "train_teacher": ("start", _start_of_teacher),
    "score": ("teacher", _teacher),
    "rerank": ("teacher", _teacher),
    "relevance": ("cross_encoder", _teacher),
    "encode": ("checkpoint", _retriever),
    "search": ("checkpoint", _retriever),
    "fill_ledger": ("generator", _generator),
    "generate_queries": ("generator", _generator),
    "finetune_generator": ("start", _start_of_generator),
}
"""By stage, which input is a model that may come from outside the store, and what opens it."""
