"""The costs of a study's runs, estimated from the stages of kept runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from flows.study.trials import PlannedTrial
from storage.results.study_runs import read_study_runs
from tasks.session import Done

Kind = tuple[str, ...]
PRETRAIN = "pretrain"


@dataclass(frozen=True)
class KnownCosts:
    """The costs of stages of kept runs, the most similar first: of the recipe, of its round, of the stage."""

    seconds: Mapping[Kind, Sequence[float]]
    """Durations, but at most the CPU time, since other work may have slowed down the machine."""
    cpu: Mapping[Kind, Sequence[float]]
    """CPU seconds. Those of a pre-training, as its duration, are of a step."""

    @staticmethod
    def of(*folders: Path) -> KnownCosts:
        """Return the costs of the runs that are kept in these folders. A cached stage counts with what it once took."""
        seconds: dict[Kind, list[float]] = {}
        cpu: dict[Kind, list[float]] = {}
        for run in (run for folder in folders for run in read_study_runs(folder)):
            name = Path(run.facts.recipe).stem
            for stage in run.stages:
                steps = run.facts.pretraining.get("steps", 1.0) if stage["stage"] == PRETRAIN else 1.0
                for kind in _kinds(name, stage["stage"], stage["round"]):
                    seconds.setdefault(kind, []).append(min(stage["seconds"], stage["cpu_seconds"]) / steps)
                    cpu.setdefault(kind, []).append(stage["cpu_seconds"] / steps)
        return KnownCosts(seconds, cpu)

    def wall_seconds(self, plan: PlannedTrial) -> float:
        """Estimate how long a run takes with the store as it is."""
        return sum(_of(self.seconds, plan, step) for step in plan.steps if not step.cached)

    def cpu_seconds(self, plan: PlannedTrial, counted: set[tuple[str, str]]) -> float:
        """Estimate the CPU time of a run in an empty store without `counted` stages, and add its stages to these."""
        steps = [step for step in plan.steps if (step.stage, step.key) not in counted]
        counted |= {(step.stage, step.key) for step in steps}
        return sum(_of(self.cpu, plan, step) for step in steps)


def _of(costs: Mapping[Kind, Sequence[float]], plan: PlannedTrial, step: Done) -> float:
    """Return the median cost of the most similar stages; 0 where there are none."""
    kinds = _kinds(Path(plan.definition.recipe).stem, step.stage, step.round)
    similar = next((costs[kind] for kind in kinds if kind in costs), [0.0])
    settings = plan.recipe.pretrain
    return median(similar) * ((settings.steps or 1) if step.stage == PRETRAIN and settings else 1)


def _kinds(recipe: str, stage: str, round_: str) -> Iterator[Kind]:
    yield recipe, stage, round_
    yield stage, round_
    yield (stage,)
