"""The hours of a plan's stages on this machine, from the rates of its encoders and generators."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from flows.plan.generator_costs import Writing
from storage.store.store import Store
from tasks.estimates.flops import Cost
from tasks.session import Done, Execution, Session, session

if TYPE_CHECKING:
    from tasks.estimates.calibration import EncoderRates

TRAININGS = ("pretrain", "train", "train_teacher", "train_generator")


class MachineHours:
    """Estimates the hours of stages for which a store has no similar artifact."""

    def __init__(
        self, store: Store, execution: Execution, report: Callable[[str], None] = lambda line: None
    ) -> None:  # fmt: skip
        """`report` prints what takes some seconds to measure."""
        self._report = report
        self._session = Session(store, execution)
        self.notes: dict[str, None] = {}
        """Where the rates come from."""

    @cached_property
    def _rates(self) -> EncoderRates:
        from tasks.estimates.calibration import encoder_rates

        with session(self._session):
            return encoder_rates()

    def measured(self) -> str:
        """Return in words when the rates were measured, and the load of a machine that was busy."""
        return self._rates.when()

    def of(self, step: Done, cost: Cost) -> float:
        """Return the hours of one process that trains a model, or passes the texts of a stage through an encoder."""
        training = step.stage in TRAININGS
        rate, kind = (self._rates.training, "training") if training else (self._rates.encoding, "encoding")
        line = f"hours of {step.stage}: estimated as FLOPs / {rate / 1e9:,.1f} GFLOP/s, the rate of {kind} measured"
        self.notes.setdefault(f"{line} {self.measured()} ({self._rates.machine})")
        return cost.flops / rate / 3600

    def of_writing(self, step: Done, work: Writing) -> float | None:
        """Return the hours of one process that writes queries; None where nobody knows how many or how fast."""
        from tasks.estimates.generation_rate import generation_rate

        if work.passages is None:
            return None
        with session(self._session):
            rate = generation_rate(work.shape, work.settings, self._report)
        if rate is None:
            return None
        line = f"hours of {step.stage}: estimated as {rate.seconds:,.3g} s for a passage, measured {rate.when()}"
        self.notes.setdefault(f"{line} with random weights; an upper bound, with every text at its full length")
        return work.passages * rate.seconds / 3600
