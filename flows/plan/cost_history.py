"""The recorded costs of building similar artifacts, from which a plan estimates disk and hours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from flows.plan.costs import CHECKPOINT, passes_texts
from storage.artifact import Manifest
from storage.files import bytes_below
from storage.store.store import Store
from tasks.estimates.flops import Cost
from tasks.session import Done


class CostHistory:
    """The artifacts of a store that are similar to a stage to build: of the same inputs or the same checkpoint."""

    def __init__(self, store: Store) -> None:
        intact = [(folder, manifest) for folder, manifest in store.manifests() if manifest]
        self.newest_first = sorted(intact, key=lambda entry: str(entry[1].built["at"]), reverse=True)
        self.notes: dict[str, None] = {}
        """Which artifacts the numbers are taken from."""

    def disk_and_hours(
        self, step: Done, cost: Cost | None, alike: Sequence[Done] = ()
    ) -> tuple[int | None, float | None]:
        """Return the bytes and the hours of the newest similar artifact; None for what is not known of one.

        `alike` are stages of the plan that cost the same: what is similar to one of them counts where nothing is
        similar to the stage itself, so that stages of equal cost have the same estimate.
        """
        match = next(((of, similar) for of in (step, *alike) for similar in self._similar(of)), None)
        if match is None:
            return None, None
        of, (folder, manifest) = match
        seconds, basis = float(manifest.built["seconds"]), "built from the same inputs"
        if passes_texts(step):
            rate = tokens_per_second(folder, manifest)
            if cost is None or not rate:
                return bytes_below(folder), None
            checkpoint = "the same checkpoint" if of is step else "the checkpoint of a stage of equal FLOPs"
            seconds, basis = cost.tokens / rate, f"at {rate:,.0f} tokens a second, from {checkpoint}"
        self.notes.setdefault(
            f"hours of {step.stage}: estimated as {manifest.reference} took, {basis}, on {manifest.built['device']}"
        )
        return bytes_below(folder), seconds / 3600

    def _similar(self, step: Done) -> Iterator[tuple[Path, Manifest]]:
        checkpoint = CHECKPOINT.get(step.stage, 0)
        for folder, manifest in self.newest_first:
            if manifest.stage == step.stage:
                inputs = list(manifest.inputs.values())
                if inputs == step.inputs or (passes_texts(step) and inputs[checkpoint] == step.inputs[checkpoint]):
                    yield folder, manifest


def tokens_per_second(folder: Path, manifest: Manifest) -> float:
    """Return tokens per second: the median of a training's log; 0 without one, as of `score`.

    For `encode`: passages × `passage_max_tokens` / seconds, an upper bound.
    """
    if manifest.stage == "encode":
        passages = json.loads((folder / "vectors.json").read_text(encoding="utf-8"))["passages"]
        return float(passages * manifest.settings["passage_max_tokens"] / manifest.built["seconds"])
    log = folder / "logs" / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    return float(median([row["tokens_per_second"] for row in rows if "tokens_per_second" in row] or [0.0]))
