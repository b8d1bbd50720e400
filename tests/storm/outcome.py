"""What came of each interruption and of each chain, and the report of all."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.storm.schedule import Interruption


@dataclass
class Hit:
    """An interruption as it happened."""

    aim: Interruption
    mode: str
    stage: str = "between stages"
    """What the run was building when the signal came."""
    reference: str = ""
    left: str = ""
    """What the next run finds: nothing, files to resume from, a manifest in the work folder, or the artifact."""
    code: int | None = None
    seconds: float = 0.0
    """From the signal to the end of the process."""
    equal: bool | None = None

    @property
    def short(self) -> str:
        """The first letters of the artifact's key, as runs print them."""
        return self.reference.partition("/")[2][:8]

    @property
    def what(self) -> str:
        """The signal and the stage, in words."""
        return f"{self.aim.kind}{' to the group' if self.aim.group else ''} in {self.stage}"


@dataclass
class Outcome:
    """Everything that is known of a storm."""

    hits: list[Hit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    chains: int = 0
    artifacts: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    """Other commands that ran at the same time, by name and exit code."""

    def as_json(self, **more: Any) -> str:
        """Everything but the single interruptions, whose figures are summed by stage."""
        value = more | {
            "interruptions": len(self.hits), "chains": self.chains, "artifacts_compared": self.artifacts,
            "commands": dict(sorted(self.commands.items())), "problems": self.problems, "stages": self.by_stage(),
            "modes": dict(Counter(hit.mode for hit in self.hits)),
            "slowest_end_seconds": self.slowest(),
        }  # fmt: skip
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    def by_stage(self) -> dict[str, dict[str, Any]]:
        """For each stage how often it was interrupted, by which signals, and what came of it."""
        table: dict[str, dict[str, Any]] = {}
        for hit in sorted(self.hits, key=lambda hit: hit.stage):
            row = table.setdefault(
                hit.stage, {"interruptions": 0, "signals": {}, "left": {}, "equal": 0, "different": 0}
            )
            row["interruptions"] += 1
            signal = f"{hit.aim.kind}{' group' if hit.aim.group else ''}"
            row["signals"][signal] = row["signals"].get(signal, 0) + 1
            row["left"][hit.left] = row["left"].get(hit.left, 0) + 1
            row["equal"] += hit.equal is True
            row["different"] += hit.equal is False
        return table

    def slowest(self) -> dict[str, float]:
        """By signal the longest time that a process took to end."""
        slowest: dict[str, float] = {}
        for hit in self.hits:
            slowest[hit.aim.kind] = round(max(slowest.get(hit.aim.kind, 0.0), hit.seconds), 2)
        return slowest

    def as_text(self) -> str:
        """The same as lines of a table."""
        lines = [f"{'stage':22} hits equal differ  left by the interruption; signals"]
        for stage, row in self.by_stage().items():
            counts = ", ".join(f"{name} {count}" for name, count in sorted(row["left"].items()))
            signals = ", ".join(f"{name} {count}" for name, count in sorted(row["signals"].items()))
            lines.append(
                f"{stage:22} {row['interruptions']:4} {row['equal']:5} {row['different']:6}  {counts}; {signals}"
            )
        lines += [
            f"{len(self.hits)} interruptions in {self.chains} chains, {self.artifacts} artifacts compared",
            f"other commands: {dict(sorted(self.commands.items()))}",
            f"slowest end in seconds by signal: {self.slowest()}",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)

    def write(self, file: Path, **more: Any) -> None:
        """Write the JSON, and each interruption as a line of a second file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.as_json(**more))
        file.with_suffix(".jsonl").write_text("".join(json.dumps(asdict(hit)) + "\n" for hit in self.hits))
