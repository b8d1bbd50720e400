"""Cranfield (Cleverdon 1967): 1,400 abstracts of aerodynamics, 225 questions of researchers, all in the split `dev`.

Published by the University of Glasgow, which states no licence. Judgements have degrees. Those from 1, a complete
answer, to 4, of some interest, are relevant; degree -1 is not. Documents without a text are left out.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from storage.conversions.smart_files import write_collection
from storage.errors import UserError
from storage.formats.archives import reading_archive

DOCUMENTS, QUERIES, JUDGEMENTS = FILES = ("cran.all.1400", "cran.qry", "cranqrel")


def convert(download: Path, folder: Path) -> None:
    """Write abstracts, questions and judgements from the archive. Raises UserError where a file is missing."""
    with reading_archive(download) as members:
        files = {PurePosixPath(name).name: content.read() for name, content in members}
    if missing := [name for name in FILES if name not in files]:
        raise UserError(
            f"{download.name}: expected {', '.join(missing)} in the archive; the publisher may have changed it"
        )
    rows = [line.split() for line in files[JUDGEMENTS].decode("ascii").splitlines()]
    pairs = [(query, document) for query, document, degree in rows if int(degree) > 0]
    write_collection(folder, files[DOCUMENTS], files[QUERIES], pairs)
