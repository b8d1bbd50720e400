"""`pretrieve export-run`: write a finished run's rankings as TREC run files, which every evaluation tool reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from flows.export.export import file_in, new_folder
from flows.export.ir_metadata import END, START, header
from flows.finished_runs import FinishedRun, Measurement, finished_run
from flows.terminal import out
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.store.store import Store
from tasks.evaluation.trec_run_file import trec_lines, write_lines
from tasks.retrieval.shared_passages import temporary_index


@dataclass(frozen=True)
class RunFormat:
    """The form of exported run files."""

    packed: bool = False
    """Whether they are gzipped."""
    plain: bool = False
    """Whether ir_metadata's header is written to `ROW.yaml`: trec_eval cannot read it in the run file."""
    actor: str | None = None
    """The name of the author in the header."""

    @property
    def ending(self) -> str:
        """Return the ending of a file's name."""
        return ".trec.gz" if self.packed else ".trec"


def export_runs(
    run: str, rows: Sequence[str], folder: Path, store_folder: Path, *, split: str | None = None,
    form: RunFormat = RunFormat(),
) -> None:  # fmt: skip
    """Write `ROW.trec` for each row, or for all, into a new folder."""
    finished = finished_run(run, Store.open_or_new(store_folder))
    measured = on_split(finished, split)
    names = known_rows(measured, rows)
    measured.store.check(measured.passages)
    with new_folder(folder) as written, temporary_index(measured.passages, ordered=False) as index:
        for row in names:
            lines = list(header(finished, measured, row, form.actor))
            if form.plain:
                without_marks = [line[2:] for line in lines if line.strip() not in (START, END)]
                write_lines(file_in(written, f"{row}.yaml"), without_marks)
            ranked = run_lines(measured, row, index)
            write_lines(file_in(written, f"{row}{form.ending}"), chain([] if form.plain else lines, ranked))
    for row in names:
        out.print(f"{row}: {folder / f'{row}{form.ending}'}")


def on_split(run: FinishedRun, split: str | None) -> Measurement:
    """Return the measurement of a split; that of the headline's split, if none is named.

    Raises UserError for an unknown split, and for one that several collections have.
    """
    if split is None:
        return run.measurements[0]
    matches = [measurement for measurement in run.measurements if split in (measurement.name, measurement.split)]
    if len(matches) != 1:
        known = ", ".join(measurement.name for measurement in run.measurements)
        raise UserError(f"--split {split}: {run.name} was measured on {known}; name one as COLLECTION/SPLIT")
    return matches[0]


def known_rows(measured: Measurement, rows: Sequence[str]) -> list[str]:
    """Return the requested rows, or all. A mean of several runs has no ranking."""
    names = list(measured.manifest.settings["names"])
    for row in rows:
        if row not in names:
            means = measured.manifest.settings["averaged"]
            hint = f"it is the mean of {', '.join(means[row])}" if row in means else f"expected {', '.join(names)}"
            raise UserError(f"{row}: no ranking of this run has that name; {hint}")
    return list(rows) or names


def run_lines(measured: Measurement, row: str, index: PassageIndex) -> Iterator[str]:
    """Yield the lines of a row's run file, with the index of the measurement's passages."""
    excluded, run = measured.manifest.settings["ignore_identical_ids"], measured.runs()[row]
    measured.store.check(run)
    return trec_lines(run, index, row, ignore_identical_ids=excluded)
