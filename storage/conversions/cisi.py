"""CISI: 1,460 abstracts of library science, 112 requests; 76 of these have judgements, all in the split `dev`.

Collected at the Centre for Inventions and Scientific Information, and published by the University of Glasgow, which
states no licence. The archive's members are checked, since its compression differs between copies.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from storage.conversions.archive_digest import checked_files
from storage.conversions.smart_files import write_collection

FILES = ("CISI.ALL", "CISI.QRY", "CISI.REL")
SHA256_OF_FILES = "7a8a9e1097c110619f6285e0c028c2d2803d9d0cdf38c8608a34e7da895ed045"
"""The digest of the list of these files (`files_digest`)."""


def convert(download: Path, folder: Path) -> None:
    """Write abstracts, requests and judgements from the archive. Raises UserError for other files."""
    files = checked_files(download, _path, SHA256_OF_FILES)
    documents, queries, judgements = (files[name] for name in FILES)
    fields = [line.split() for line in judgements.decode("latin-1").splitlines()]
    write_collection(folder, documents, queries, [(row[0], row[1]) for row in fields if row])


def _path(member: str) -> str | None:
    name = PurePosixPath(member).name
    return name if name in FILES else None
