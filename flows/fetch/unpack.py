"""Puts what was downloaded where a dataset loader reads it.

The result is a file, members of an archive, titles of a corpus, or a collection that was converted to BEIR's layout.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from flows.fetch.official_files import Remote, beir_member, is_fetched
from storage.conversions import convert
from storage.errors import UserError
from storage.files import flush, writing
from storage.formats.archives import reading_archive
from storage.formats.lines import open_plain_or_gzipped, read_json_lines, text_field


def install(remote: Remote, file: Path, folder: Path) -> None:
    """Put the files of a download into a folder, and delete the download. Raises UserError for unexpected content."""
    if remote.conversion:
        convert(remote.conversion, file, folder)
        file.unlink()
    elif remote.archive:
        _unpack(remote, file, folder)
    elif remote.titles:
        _write_titles(file, folder / remote.names[0])
    else:
        _move(file, folder / remote.names[0])


def _move(file: Path, target: Path) -> None:
    """Move a file to its path and name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix != ".parquet":
        _refuse_web_page(file)
    flush(file)
    file.replace(target)


def _refuse_web_page(file: Path) -> None:
    """Raise UserError for an error page in place of a file without checksum."""
    with open_plain_or_gzipped(file, str):
        pass


def _write_titles(file: Path, target: Path) -> None:
    """Write lines of id, tab, title from JSON lines with `docid` and `title`; "-" where there is no title."""
    with writing(target) as temporary, temporary.open("w", encoding="utf-8") as titles:
        for where, row in read_json_lines(file):
            title = " ".join(text_field(row, "title", where).split()) or "-"
            titles.write(f"{text_field(row, 'docid', where)}\t{title}\n")
    file.unlink()


def _unpack(remote: Remote, archive: Path, folder: Path) -> None:
    """Write the needed members of an archive, and delete the archive."""
    missing = {Path(name).name: Path(name) for name in remote.names}
    with reading_archive(archive) as members:
        for member, content in members:
            target = missing.pop(Path(member).name, None) if remote.names else beir_member(member)
            if target is not None:
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                with writing(folder / target) as temporary, temporary.open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
    if missing or not is_fetched(folder, remote):
        names = ", ".join(sorted(missing)) or "corpus.jsonl and queries.jsonl"
        raise UserError(f"{remote.at}: expected {names} in the archive; the publisher may have changed it")
    archive.unlink()
