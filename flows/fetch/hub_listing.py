"""The files of a folder of Hugging Face's hub, as the hub lists them, or as it listed them before a complete fetch."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.fetch.official_files import HUB, Remote, is_fetched
from storage.errors import UserError
from storage.files import write_atomically

LISTED = ".hub.json"
"""The file in a collection's folder that keeps the listings of its last fetch, by the address in `OFFICIAL`."""


def listed(remote: Remote, folder: Path) -> list[Remote]:
    """Return a file itself, or the files of a folder of the hub, with the hub's checksums.

    The hub is not contacted where `folder` has all files of its last listing. Raises UserError where it fails.
    """
    if not remote.at.startswith(HUB):
        return [remote]
    kept = _read(folder).get(remote.at, [])
    complete = [_file(remote, entry) for entry in kept]
    if complete and all(is_fetched(folder, file) for file in complete):
        return complete
    entries = _entries(remote)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / LISTED, json.dumps(_read(folder) | {remote.at: entries}, indent=1) + "\n")
    return [_file(remote, entry) for entry in entries]


def _read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the listings in a folder; none where the file is missing or damaged."""
    try:
        value = json.loads((folder / LISTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _address(remote: Remote) -> tuple[str, str]:
    """Return the addresses of a folder's listing and of its repository's files."""
    repository, _, path = remote.at.removeprefix(HUB).partition("@")
    revision, _, below = path.partition(":")
    endpoint, revision = os.environ.get("HF_ENDPOINT", "https://huggingface.co"), quote(revision, safe="")
    data_set = f"datasets/{repository}"
    return f"{endpoint}/api/{data_set}/tree/{revision}/{below}", f"{endpoint}/{data_set}/resolve/{revision}"


def _entries(remote: Remote) -> list[dict[str, Any]]:
    """Return path, size and SHA-256 of each Parquet file that the hub lists, over all pages of the listing."""
    from requests import RequestException, get

    url, _ = _address(remote)
    entries, page = list[dict[str, Any]](), url
    try:
        while page:
            answer = get(page, timeout=60)
            answer.raise_for_status()
            entries += [
                {"path": entry["path"], "size": entry.get("size"), "sha256": (entry.get("lfs") or {}).get("oid")}
                for entry in answer.json()
                if entry["path"].endswith(".parquet")
            ]
            page = answer.links.get("next", {}).get("url", "")
    except (RequestException, json.JSONDecodeError, KeyError, TypeError) as error:
        excluded = f"; leave it out with --without {remote.part}" if remote.part else ""
        raise UserError(f"{url}: cannot be listed ({type(error).__name__}); try again later{excluded}") from None
    if not entries:
        raise UserError(f"{url}: has no *.parquet; the publisher may have moved them")
    return entries


def _file(remote: Remote, entry: dict[str, Any]) -> Remote:
    """Return the file of a listing's entry."""
    _, files = _address(remote)
    return replace(
        remote, at=f"{files}/{entry['path']}", names=(f"{remote.names[0]}{Path(entry['path']).name}",),
        size=entry["size"], checksum=f"sha256:{entry['sha256']}" if entry["sha256"] else None,
    )  # fmt: skip
