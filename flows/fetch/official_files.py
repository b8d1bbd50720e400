"""Addresses of the official files of collections, and the names that the dataset loaders expect.

Addresses, sizes and checksums are those of ir_datasets (`etc/downloads.json`: SECTION/KEY), or of Hugging Face's hub.
For the few files that both lack they are the publishers', with a checksum where one is published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from storage.conversions.squad_folds import FOLD_FILES
from storage.errors import UserError, suggestion
from storage.formats.lines import plain_or_gzipped

MSMARCO = "https://msmarco.z22.web.core.windows.net/msmarcoranking"
DPR = "https://dl.fbaipublicfiles.com/dpr/data/retriever"
GLASGOW = "http://ir.dcs.gla.ac.uk/resources/test_collections"
GITHUB_FILES = "https://raw.githubusercontent.com"
FOR_RESEARCH = "MS MARCO is for non-commercial research only (https://microsoft.github.io/msmarco)"
BEIR, HUB = "beir/", "hub:"


@dataclass(frozen=True)
class Remote:
    """A file to fetch, or a folder of Hugging Face's hub."""

    at: str
    """SECTION/KEY of ir_datasets, an address, or hub:REPOSITORY@REVISION:FOLDER of a data set on the hub."""
    names: tuple[str, ...]
    """The resulting files: the file itself, or members of the archive; () for all that the BEIR loader reads.

    Of a folder of the hub, the prefix of its files' names."""
    archive: bool = False
    titles: bool = False
    """Whether the result is id, tab, title of each row of the fetched JSON lines."""
    conversion: str = ""
    """The module of storage/conversions/ that writes the resulting files from what is fetched."""
    checksum: str | None = None
    """`md5:` or `sha256:` and the digest of the file at an address."""
    size: int | None = None
    part: str = ""
    """The part of the collection that can be left out."""
    mirrored: bool = False
    """Whether the copy of ir_datasets' authors is meant, which has the publisher's checksum."""
    otherwise: Remote | None = None
    """Another source of the same files, for when this one fails."""

    @property
    def is_source(self) -> bool:
        """Return whether the resulting files are extracted from the fetched file."""
        return self.archive or self.titles or bool(self.conversion)


@dataclass(frozen=True)
class Official:
    """The files of a collection."""

    remotes: tuple[Remote, ...]
    terms: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that can be left out."""
        return tuple(dict.fromkeys(remote.part for remote in self.remotes if remote.part))


def _one(at: str, name: str, checksum: str | None = None) -> Remote:
    return Remote(at, (name,), checksum=checksum)


def _mirrored(at: str, name: str) -> Remote:
    """Return a file that ir_datasets' authors keep a copy of."""
    return Remote(at, (name,), otherwise=Remote(at, (name,), mirrored=True))


def _part(name: str, *remotes: Remote) -> tuple[Remote, ...]:
    return tuple(replace(remote, part=name) for remote in remotes)


def _below(folder: str, remotes: Iterable[Remote]) -> tuple[Remote, ...]:
    """Return the same files, to be put into a folder within the collection's."""
    return tuple(
        replace(
            remote, names=tuple(f"{folder}/{name}" for name in remote.names),
            otherwise=remote.otherwise and _below(folder, [remote.otherwise])[0],
        )
        for remote in remotes
    )  # fmt: skip


_PASSAGES = Remote("msmarco-passage/collectionandqueries",
                   ("collection.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv"), archive=True)  # fmt: skip
_TITLES = Remote(  # not among Microsoft's files: RocketQA's authors took them from the linked documents
    "https://rocketqa.bj.bcebos.com/corpus/marco.tar.gz", ("para.title.txt",), archive=True,
    otherwise=Remote(  # the same titles in the corpus of Tevatron's authors
        "https://huggingface.co/datasets/Tevatron/msmarco-passage-corpus/resolve/"
        "5b250efbb2149162100c58f2394e990651b47beb/corpus.jsonl.gz", ("para.title.txt",), titles=True),
)  # fmt: skip
_DOCUMENTS = _one(f"{MSMARCO}/msmarco-docs.tsv.gz", "msmarco-docs.tsv.gz", "md5:103b19e21ad324d8a5f1ab562425c0b4")
_NEGATIVES = _one(  # the checksum is in https://github.com/webis-de/lightning-ir
    "https://sbert.net/datasets/msmarco-hard-negatives.jsonl.gz", "msmarco-hard-negatives.jsonl.gz",
    "md5:ecf8cafb10197fd7adf4f68aabd15d84",
)  # fmt: skip
_TREC_TOPICS = (
    _one("msmarco-passage/trec-dl-2019/queries", "msmarco-test2019-queries.tsv.gz"),
    _one("msmarco-passage/trec-dl-2020/queries", "msmarco-test2020-queries.tsv.gz"),
)
_TOPICS_AND_CORPUS = ("corpus.jsonl.gz", "queries.jsonl.gz", "qrels/dev.tsv")
_SQUAD = "rajpurkar/SQuAD-explorer/eee5fdbf62f8613a7812b03419e6b29617b74fd1/dataset/dev-v1.1.json"
_CONVERTED = {  # into BEIR's layout; the addresses name a commit
    "squad": Official((Remote(
        f"{GITHUB_FILES}/{_SQUAD}",
        ("corpus.jsonl.gz", "documents.jsonl.gz", "queries.jsonl.gz", "qrels/train.tsv", "qrels/dev.tsv", *FOLD_FILES),
        conversion="squad",
        checksum="sha256:95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
    ),), "SQuAD is CC BY-SA 4.0 (https://rajpurkar.github.io/SQuAD-explorer)"),
    "scifact": Official((Remote(
        "beir/scifact", (*_TOPICS_AND_CORPUS, "qrels/train.tsv"), conversion="scifact",
    ),), "SciFact's claims are CC BY 4.0, its abstracts ODC-By 1.0 (https://github.com/allenai/scifact)"),
    "medquad": Official((Remote(
        "https://github.com/abachaa/MedQuAD/archive/577bd37b96c02d1833b2c9eed2de9f96964e96cb.tar.gz",
        (*_TOPICS_AND_CORPUS, "qrels/train.tsv"), conversion="medquad",
    ),), "MedQuAD is CC BY 4.0 (https://github.com/abachaa/MedQuAD)"),
    "covid-qa": Official((Remote(
        f"{GITHUB_FILES}/deepset-ai/COVID-QA/fb2eb5e249618457e5359806601086c635c8eb8f/data/question-answering/"
        "200423_covidQA.json", _TOPICS_AND_CORPUS, conversion="covid_qa",
        checksum="sha256:ab310b4e39f726e087c8fa3d1787c73771dacddc584977204ebe3cc889ee1264",
    ),), "COVID-QA is Apache-2.0 (https://github.com/deepset-ai/COVID-QA)"),
    "cisi": Official((Remote(f"{GLASGOW}/cisi/cisi.tar.gz", _TOPICS_AND_CORPUS, conversion="cisi"),),
                     f"CISI has no stated licence ({GLASGOW}/cisi)"),
    "cranfield": Official((Remote("cranfield/main", _TOPICS_AND_CORPUS, conversion="cranfield"),),
                          f"Cranfield has no stated licence ({GLASGOW}/cran)"),
}  # fmt: skip
_WIKIPEDIA = Remote(f"{HUB}wikimedia/wikipedia@main:20231101.en", ("",), part="wikipedia")
_BOOKCORPUS = Remote(f"{HUB}bookcorpus/bookcorpus@refs/convert/parquet:plain_text/train", ("",), part="bookcorpus")
_WIKIPEDIA_AND_BOOKS = (*_below("wikipedia", [_WIKIPEDIA]), *_below("bookcorpus", [_BOOKCORPUS]))
_TERMS_OF_TEXTS = "Wikipedia is CC BY-SA; BookCorpus has no licence, since its books are their authors'"
OFFICIAL = {
    "msmarco": Official((
        *_part("passages", _PASSAGES),
        *_part("topics",
               Remote("msmarco-passage/queries", ("queries.train.tsv", "queries.dev.tsv"), archive=True),
               _one("msmarco-passage/train/qrels", "qrels.train.tsv"),
               *_TREC_TOPICS,
               _mirrored("msmarco-passage/trec-dl-2019/qrels", "2019qrels-pass.txt"),
               _mirrored("msmarco-passage/trec-dl-2020/qrels", "2020qrels-pass.txt")),
        *_part("hard_negatives", _NEGATIVES),  # of the recipes for BEIR
        *_part("titles", _TITLES),
        *_part("documents", _DOCUMENTS),
    ), FOR_RESEARCH),
    "msmarco_titles": Official((_TITLES,), FOR_RESEARCH),  # next to collection.tsv
    "msmarco_triples": Official((
        _one("msmarco-passage/train/docpairs/v2", "qidpidtriples.train.full.2.tsv.gz"),
    ), FOR_RESEARCH),
    "msmarco_hard_negatives": Official((_NEGATIVES,), FOR_RESEARCH),
    "msmarco_documents": Official((
        *_part("topics",
               _one("msmarco-document/train/queries", "msmarco-doctrain-queries.tsv.gz"),
               # Two different checksums are published for each of the two qrels files.
               _one(f"{MSMARCO}/msmarco-doctrain-qrels.tsv.gz", "msmarco-doctrain-qrels.tsv.gz"),
               _one("msmarco-document/dev/queries", "msmarco-docdev-queries.tsv.gz"),
               _one(f"{MSMARCO}/msmarco-docdev-qrels.tsv.gz", "msmarco-docdev-qrels.tsv.gz"),
               *_TREC_TOPICS,
               _mirrored("msmarco-document/trec-dl-2019/qrels", "2019qrels-docs.txt"),
               _mirrored("msmarco-document/trec-dl-2020/qrels", "2020qrels-docs.txt")),
        *_part("documents", _DOCUMENTS),
    ), FOR_RESEARCH),
    "natural_questions": Official((
        *_part("topics",
               _one("dpr-w100/nq-train", "biencoder-nq-train.json.gz"),
               _one("dpr-w100/nq-dev", "biencoder-nq-dev.json.gz"),
               _one(f"{DPR}/nq-dev.qa.csv", "nq-dev.qa.csv"),
               _one(f"{DPR}/nq-test.qa.csv", "nq-test.qa.csv")),
        *_part("passages", _one("dpr-w100/docs", "psgs_w100.tsv.gz")),
    ), "Natural Questions and Wikipedia are CC BY-SA 3.0, DPR's files of them CC BY-NC 4.0 "
       "(https://github.com/facebookresearch/DPR)"),
    "wikipedia": Official((replace(_WIKIPEDIA, part=""),), _TERMS_OF_TEXTS.partition(";")[0]),
    "bookcorpus": Official((replace(_BOOKCORPUS, part=""),), _TERMS_OF_TEXTS.partition("; ")[2]),
    "wikipedia_bookcorpus": Official(_WIKIPEDIA_AND_BOOKS, _TERMS_OF_TEXTS),
    "wikipedia_bookcorpus_msmarco": Official((
        *_WIKIPEDIA_AND_BOOKS,
        *_below("msmarco", _part("passages", _PASSAGES)), *_below("msmarco", _part("titles", _TITLES)),
    ), f"{_TERMS_OF_TEXTS}. {FOR_RESEARCH}"),
    **_CONVERTED,
}  # fmt: skip


def official(name: str) -> Official:
    """Return the files of a collection by name; beir/NAME is any of BEIR's public sets. Raises UserError."""
    if name in OFFICIAL:
        return OFFICIAL[name]
    if name.startswith(BEIR) and name != BEIR:
        return Official((Remote(name, (), archive=True),), "each collection has a licence of its own "
                        "(https://github.com/beir-cellar/beir)")  # fmt: skip
    raise UserError(f"{name}: no such collection; {suggestion(name, OFFICIAL)} (or {BEIR}NAME, such as beir/scifact)")


def beir_member(member: str) -> PurePosixPath | None:
    """Return the path of a member of a BEIR archive without the archive's top folder.

    None for a member that is not a file of texts, queries or judgements.
    """
    path = PurePosixPath(*PurePosixPath(member).parts[1:])
    wanted = path.name in ("corpus.jsonl", "queries.jsonl") or (path.parent.name == "qrels" and path.suffix == ".tsv")
    return path if wanted and not {"..", "/"} & set(PurePosixPath(member).parts) else None


def is_fetched(folder: Path, remote: Remote) -> bool:
    """Return whether a folder has all files that result from a remote file, plain or gzipped."""
    if remote.names:
        return all(plain_or_gzipped(folder / name.removesuffix(".gz")) for name in remote.names)
    return any(folder.glob("corpus.jsonl")) or any(folder.glob("*/corpus.jsonl"))  # CQADupStack: a folder per forum
