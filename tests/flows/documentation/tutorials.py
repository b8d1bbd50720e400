"""What documents tell a reader to type, run as typed: in a folder with what the document says is there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import warm
from tests.test_readme import commands
from tests.tiny import PIECES, save_t5

GENERATOR = "doc2query/all-with_prefix-t5-base-v1"
TEXTS = [
    ("Road salt", "Salt lowers the freezing point of water, so it melts ice on roads in winter."),
    ("Heron", "A heron is a bird with long legs. It waits in shallow water for fish."),
    ("Granite", "Granite is a hard rock of quartz and feldspar. It cools slowly below the ground."),
    ("Tide", "The moon pulls the water of the sea. The tide rises twice on most days."),
]
SLICE = {
    "dataset.fraction": "0.02", "backbone.weights": "bert_tiny_msmarco", "backbone.layers": "null",
    "bm25.engine": "bm25s", "execution.threads": "1", "encode.passage_max_tokens": "32",
    "pretrain.steps": "2", "pretrain.batch": "4", "pretrain.objective.max_tokens": "32", "pretrain.probe": "null",
    **{f"rounds.{number}.train.passage_max_tokens": "32" for number in range(3)},
}  # fmt: skip
"""What shrinks the small recipes to seconds."""


def changes(values: Mapping[str, str]) -> list[str]:
    """Return `--set` for each value."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def write_collection(folder: Path, copies: int = 12) -> None:
    """Write a collection in BEIR's layout with judged queries, and a tiny generator in a folder of its hub name."""
    rows = [(f"{title} {n}", f"{text} Number {n}.") for n in range(copies) for title, text in TEXTS]
    (folder / "my-collection" / "qrels").mkdir(parents=True)
    write_lines(
        folder / "my-collection" / "corpus.jsonl",
        [{"_id": f"d{n}", "title": title, "text": text} for n, (title, text) in enumerate(rows)],
    )
    write_lines(
        folder / "my-collection" / "queries.jsonl",
        [{"_id": f"q{n}", "text": f"what is {title.lower()}"} for n, (title, _) in enumerate(rows)],
    )
    for split, wanted in (("train", range(0, len(rows), 2)), ("dev", range(1, len(rows), 2))):
        qrels = "".join(f"q{n}\td{n}\t1\n" for n in wanted)
        (folder / "my-collection" / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    (folder / GENERATOR).mkdir(parents=True)
    save_t5(folder / GENERATOR, PIECES)


def write_lines(file: Path, rows: Sequence[Mapping[str, str]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def fenced(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language; "" for those without one."""
    blocks = re.findall(r"^```([a-z]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def run(
    folder: Path, line: str, more: Sequence[str] = (), *, module: str = "tests.plain_command", **environment: str
) -> str:  # fmt: skip
    """Run a line of a document with further options, and return what it prints; by default without Prefect."""
    ended = warm.run(folder, *shlex.split(line)[1:], *more, module=module, OMP_NUM_THREADS="1", **environment)
    assert ended.returncode == 0, f"{line}\n{ended.stderr}"
    return ended.stdout


def lines_of(page: Path) -> list[str]:
    """Return the commands of a page's blocks, in their order; each once."""
    return list(dict.fromkeys(line for line in commands(page, "pretrieve") if len(line.split()) > 2))
