"""Addresses of the official files of collections, and the names that the dataset loaders expect.

Addresses and checksums are those of ir_datasets (`etc/downloads.json`: SECTION/KEY). For the few files that it lacks
they are the publishers', with a checksum where one is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from storage.errors import UserError

MSMARCO = "https://msmarco.z22.web.core.windows.net/msmarcoranking"
DPR = "https://dl.fbaipublicfiles.com/dpr/data/retriever"
FOR_RESEARCH = "MS MARCO is for non-commercial research only (https://microsoft.github.io/msmarco)"
BEIR = "beir/"


@dataclass(frozen=True)
class Remote:
    """A file to fetch."""

    at: str
    """SECTION/KEY of ir_datasets, or an address."""
    names: tuple[str, ...]
    """The resulting files: the file itself, or members of the archive; () for all that the BEIR loader reads."""
    archive: bool = False
    md5: str | None = None
    """The checksum of the file at an address."""


@dataclass(frozen=True)
class Official:
    """The files of a collection."""

    remotes: tuple[Remote, ...]
    terms: str


def _one(at: str, name: str, md5: str | None = None) -> Remote:
    return Remote(at, (name,), md5=md5)


_TOPICS = (
    _one("msmarco-passage/trec-dl-2019/queries", "msmarco-test2019-queries.tsv.gz"),
    _one("msmarco-passage/trec-dl-2020/queries", "msmarco-test2020-queries.tsv.gz"),
)
OFFICIAL = {
    "msmarco": Official((
        Remote("msmarco-passage/collectionandqueries",
               ("collection.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv"), archive=True),
        Remote("msmarco-passage/queries", ("queries.train.tsv", "queries.dev.tsv"), archive=True),
        _one("msmarco-passage/train/qrels", "qrels.train.tsv"),
        *_TOPICS,
        _one("msmarco-passage/trec-dl-2019/qrels", "2019qrels-pass.txt"),
        _one("msmarco-passage/trec-dl-2020/qrels", "2020qrels-pass.txt"),
    ), FOR_RESEARCH),
    "msmarco_titles": Official((  # next to collection.tsv
        Remote("https://rocketqa.bj.bcebos.com/corpus/marco.tar.gz", ("para.title.txt",), archive=True),
    ), FOR_RESEARCH),
    "msmarco_triples": Official((
        _one("msmarco-passage/train/docpairs/v2", "qidpidtriples.train.full.2.tsv.gz"),
    ), FOR_RESEARCH),
    "msmarco_hard_negatives": Official((  # the checksum is in https://github.com/webis-de/lightning-ir
        _one("https://sbert.net/datasets/msmarco-hard-negatives.jsonl.gz", "msmarco-hard-negatives.jsonl.gz",
             "ecf8cafb10197fd7adf4f68aabd15d84"),
    ), FOR_RESEARCH),
    "msmarco_documents": Official((
        _one(f"{MSMARCO}/msmarco-docs.tsv.gz", "msmarco-docs.tsv.gz", "103b19e21ad324d8a5f1ab562425c0b4"),
        _one("msmarco-document/train/queries", "msmarco-doctrain-queries.tsv.gz"),
        # Two different checksums are published for each of the two qrels files.
        _one(f"{MSMARCO}/msmarco-doctrain-qrels.tsv.gz", "msmarco-doctrain-qrels.tsv.gz"),
        _one("msmarco-document/dev/queries", "msmarco-docdev-queries.tsv.gz"),
        _one(f"{MSMARCO}/msmarco-docdev-qrels.tsv.gz", "msmarco-docdev-qrels.tsv.gz"),
        *_TOPICS,
        _one("msmarco-document/trec-dl-2019/qrels", "2019qrels-docs.txt"),
        _one("msmarco-document/trec-dl-2020/qrels", "2020qrels-docs.txt"),
    ), FOR_RESEARCH),
    "natural_questions": Official((
        _one("dpr-w100/docs", "psgs_w100.tsv.gz"),
        _one("dpr-w100/nq-train", "biencoder-nq-train.json.gz"),
        _one("dpr-w100/nq-dev", "biencoder-nq-dev.json.gz"),
        _one(f"{DPR}/nq-dev.qa.csv", "nq-dev.qa.csv"),
        _one(f"{DPR}/nq-test.qa.csv", "nq-test.qa.csv"),
    ), "Natural Questions and Wikipedia are CC BY-SA 3.0, DPR's files of them CC BY-NC 4.0 "
       "(https://github.com/facebookresearch/DPR)"),
}  # fmt: skip


def official(name: str) -> Official:
    """Return the files of a collection by name; beir/NAME is any of BEIR's public sets. Raises UserError."""
    if name in OFFICIAL:
        return OFFICIAL[name]
    if name.startswith(BEIR) and name != BEIR:
        return Official((Remote(name, (), archive=True),), "each collection has a licence of its own "
                        "(https://github.com/beir-cellar/beir)")  # fmt: skip
    raise UserError(f"{name}: expected one of {', '.join(OFFICIAL)}, or {BEIR}NAME, such as beir/scifact")


def beir_member(member: str) -> PurePosixPath | None:
    """Return the path of a member of a BEIR archive without the archive's top folder.

    None for a member that is not a file of texts, queries or judgements.
    """
    path = PurePosixPath(*PurePosixPath(member).parts[1:])
    wanted = path.name in ("corpus.jsonl", "queries.jsonl") or (path.parent.name == "qrels" and path.suffix == ".tsv")
    return path if wanted and not {"..", "/"} & set(PurePosixPath(member).parts) else None


def is_fetched(folder: Path, remote: Remote) -> bool:
    """Return whether a folder has all files that result from a remote file."""
    if remote.names:
        return all((folder / name).is_file() for name in remote.names)
    return any(folder.glob("corpus.jsonl")) or any(folder.glob("*/corpus.jsonl"))  # CQADupStack: a folder per forum
