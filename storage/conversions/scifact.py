"""The train part of SciFact in BEIR (Wadden et al. 2020; CC BY 4.0, ODC-By 1.0): claims and abstracts about them.

All 5,183 abstracts are the corpus. The 809 claims of BEIR's `train` are divided: a claim is in `dev` if the SHA-256 of
its id modulo 1,000 is less than 150, else in `train`. BEIR's `test` is not read; `beir/scifact` has it.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from storage.conversions.beir_files import per_mille, relevant, write_json_lines, write_qrels
from storage.errors import UserError
from storage.formats.archives import reading_archive

NEEDED = ("corpus.jsonl", "queries.jsonl", "train.tsv")
DEV_PER_MILLE = 150


def convert(download: Path, folder: Path) -> None:
    """Write abstracts, claims and judgements from BEIR's archive. Raises UserError where it lacks a file."""
    with reading_archive(download) as members:
        lines = {PurePosixPath(name).name: file.read().splitlines() for name, file in members}
    if missing := [name for name in NEEDED if name not in lines]:
        raise UserError(
            f"{download.name}: expected {', '.join(missing)} in the archive; the publisher may have changed it"
        )
    judged = [line.decode().split("\t") for line in lines["train.tsv"][1:]]
    claims = {query_id for query_id, _, _ in judged}
    write_json_lines(folder / "corpus.jsonl.gz", (_fields(line, "title") for line in lines["corpus.jsonl"]))
    write_json_lines(folder / "queries.jsonl.gz", (
        row for line in lines["queries.jsonl"] if (row := _fields(line))["_id"] in claims
    ))  # fmt: skip
    for split, is_dev in (("dev", True), ("train", False)):
        write_qrels(folder / f"qrels/{split}.tsv", (
            relevant(query_id, doc_id)
            for query_id, doc_id, _ in judged if (per_mille(query_id) < DEV_PER_MILLE) == is_dev
        ))  # fmt: skip


def _fields(line: bytes, *names: str) -> dict[str, Any]:
    """Return a row's id, the fields `names` and its text, without BEIR's metadata."""
    row = json.loads(line)
    return {name: row[name] for name in ("_id", *names, "text")}
