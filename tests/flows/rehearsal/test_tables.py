"""The tables of a rehearsal have times with the unit that suits, and their sums."""

from rich.console import Console

from flows.rehearsal.measurement import Extrapolation, Measurement
from flows.rehearsal.tables import stages_table, steps_table, total_time
from flows.rehearsal.true_shapes import TrueStep


def stage(hours: float | None) -> Extrapolation:
    return Extrapolation(Measurement("mine", "retriever_1", False, 100, 0.4, 1, 1), 1.0, hours, 1.0, 1.0)


def cells(table: object) -> list[list[str]]:
    """Return the cells of a table's rows as they are printed."""
    console = Console(width=150)
    with console.capture() as capture:
        console.print(table)
    lines = [line for line in capture.get().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def test_stages_of_seconds_have_seconds_and_a_total() -> None:
    stages = [stage(0.4 / 3600), stage(2.5), stage(None)]

    assert [row[5] for row in cells(stages_table("title", stages))] == ["~0.4 s", "~2 h 30 min", ""]
    assert total_time(stages, "stages") == "in total: ~2 h 30 min, for 2 of 3 stages"
    assert total_time([stage(None)], "stages") == ""


def test_training_steps_have_the_time_of_a_step_and_of_all_steps() -> None:
    steps = [TrueStep("train", "retriever_1", 8, 64, 0.02, 1 << 20, hours) for hours in (0.05, None)]

    assert [row[4:] for row in cells(steps_table(steps))] == [
        ["~0.02", "1.0 MiB", "~3 min 0 s"], ["~0.02", "1.0 MiB", "?"]
    ]  # fmt: skip
    assert total_time(steps, "trainings") == "in total: ~3 min 0 s, for 1 of 2 trainings"
