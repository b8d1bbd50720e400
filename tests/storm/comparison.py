"""Compare a complete store with that of an uninterrupted run: the same artifacts, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.storm import companions, leftovers
from tests.storm.runs import end_of

if TYPE_CHECKING:
    from tests.storm.chains import ChainRuns


def compare(chain: ChainRuns) -> None:
    """Note every artifact that differs, is missing or is not expected, every file and every process that is left."""
    for recipe in chain.chain.mode.recipes:
        again = chain.start(recipe)
        if chain.wait(again) != 0 or " 0 to build" not in again.text:
            chain.problem(f"{recipe}: expected a complete store, found {end_of(again)}")
    chain.sweep(to_the_end=True)
    built, expected = leftovers.artifacts(chain.store), chain.reference.expected(chain.chain.mode.recipes)
    for name in sorted(built.keys() & expected.keys()):
        if fields := [field for field, value in expected[name].items() if built[name][field] != value]:
            chain.problem(f"{name}: {', '.join(fields)} differ from an unbroken run's")
    for name in sorted(built.keys() ^ expected.keys()):
        chain.problem(f"{name} is {'not expected' if name in built else 'missing'}")
    for hit in chain.hits:
        hit.equal = built.get(hit.reference) == expected.get(hit.reference) if hit.reference else None
    for path in leftovers.files(chain.store):
        chain.problem(path)
    if not chain.chain.mode.arguments:  # with --until a run's note stays
        for note in sorted((chain.store / ".runs").glob("*")):
            chain.problem(f"the note of a run is left: {note.read_text()[:200]}")
    for path in sorted(chain.temporary.iterdir()):
        if path.name.startswith("torchinductor_") and not any(path.iterdir()):
            continue  # PyTorch creates it when it is imported, and never removes it
        chain.problem(f"TMPDIR/{path.name} is left")
    code, words = companions.call(chain, "verify")
    if code != 0:
        chain.problem(f"verify at the end: exit code {code}: {words}")
    chain.outcome.chains += 1
    chain.outcome.artifacts += len(built)
