"""`pretrieve export-run`: write a finished run's rankings as TREC run files, which every evaluation tool reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from flows.export import file_in, new_folder
from flows.finished_runs import FinishedRun, Measurement, finished_run
from flows.ir_metadata import END, START, header
from flows.terminal import out
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.store.store import Store
from tasks.evaluation.trec_run_file import trec_lines, write_lines
from tasks.retrieval.shared_passages import temporary_index


def export_runs(
    run: str, rows: Sequence[str], folder: Path, store_folder: Path, *, split: str | None = None, packed: bool = False,
    plain: bool = False, actor: str | None = None,
) -> None:  # fmt: skip
    """Write `ROW.trec` for each row, or for all, into a new folder; `packed` adds .gz.

    `plain` writes ir_metadata's header to `ROW.yaml` instead of into the run file, since trec_eval cannot read it.
    """
    finished = finished_run(run, Store.open_or_new(store_folder))
    measured = on_split(finished, split)
    ending = ".trec.gz" if packed else ".trec"
    names = known_rows(measured, rows)
    measured.store.check(measured.passages)
    with new_folder(folder) as written, temporary_index(measured.passages, ordered=False) as index:
        for row in names:
            lines = list(header(finished, measured, row, actor))
            if plain:
                without_marks = [line[2:] for line in lines if line.strip() not in (START, END)]
                write_lines(file_in(written, f"{row}.yaml"), without_marks)
            write_lines(
                file_in(written, f"{row}{ending}"), chain([] if plain else lines, run_lines(measured, row, index))
            )
    for row in names:
        out.print(f"{row}: {folder / f'{row}{ending}'}")


def on_split(run: FinishedRun, split: str | None) -> Measurement:
    """Return the measurement of a split; that of the headline's split, if none is named."""
    named = {
        name: measurement
        for measurement in run.measurements
        for name in (measurement.name, measurement.manifest.settings["split"])
    }
    if split is None:
        return run.measurements[0]
    if split not in named:
        known = ", ".join(measurement.name for measurement in run.measurements)
        raise UserError(f"--split {split}: {run.name} was measured on {known}")
    return named[split]


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
