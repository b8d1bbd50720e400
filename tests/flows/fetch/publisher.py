"""A server on this machine that publishes miniature files at the paths of the real publishers."""

from __future__ import annotations

import hashlib
import io
import json
import pkgutil
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flows.fetch import official_files
from flows.fetch.official_files import OFFICIAL, Official, Remote


@dataclass
class Publisher:
    """A server whose files, by path, can be given and taken away; `cut` connections break after half a file."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Paths, and the requested range."""
    cut: int = 0
    fails: int = 0
    """Number of requests that are answered by HTTP 503."""
    ranges: bool = True
    next_pages: dict[str, str] = field(default_factory=dict)
    """The path of the page that follows a listing, by the listing's path."""


@pytest.fixture(scope="module")
def server() -> Iterator[Publisher]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            published.requests.append((self.path, self.headers.get("Range")))
            content = published.files.get(self.path)
            etag = f'"{hashlib.sha256(content or b"").hexdigest()}"'
            resumable = published.ranges and self.headers.get("If-Range") in (None, etag)
            requested = self.headers.get("Range") if resumable else None
            if content is None:
                self.send_error(404, "there is no such file")
                return
            if published.fails:
                published.fails -= 1
                self.send_error(503, "busy")
                return
            start = int(re.findall(r"\d+", requested)[0]) if requested else 0
            if start >= len(content) > 0:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206 if requested else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", etag)
            if following := published.next_pages.get(self.path):
                self.send_header("Link", f'<{published.url}{following}>; rel="next"')
            self.end_headers()
            if published.cut:
                published.cut -= 1
                content = content[: start + (len(content) - start) // 2]
            self.wfile.write(content[start:])

        def do_HEAD(self) -> None:
            content = published.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()

        def log_message(self, *of: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    published = Publisher(f"http://127.0.0.1:{running.server_port}")
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield published
    running.shutdown()
    running.server_close()


@pytest.fixture
def publisher(server: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """Has published nothing; it is also Hugging Face's hub, and the only server that any address names."""
    return only_publisher(server, tmp_path, monkeypatch)


def only_publisher(server: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """Make all addresses of collections those of the server, and return it without files."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "ir_datasets"))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr("flows.fetch.fetch.MIRROR", f"{server.url}/mirror")
    monkeypatch.setattr("flows.fetch.download.RETRY_SECONDS", 0.0)
    server.files, server.requests, server.next_pages = {}, [], {}
    server.cut, server.fails, server.ranges = 0, 0, True
    moved = {name: Official(tuple(local(remote, server) for remote in known.remotes), known.terms)
             for name, known in OFFICIAL.items()}  # fmt: skip
    monkeypatch.setattr(official_files, "OFFICIAL", moved)
    return server


def local(remote: Remote, server: Publisher) -> Remote:
    """Return the same file at the same path of the test's server, without a checksum."""
    at = re.sub("^https?://[^/]+", server.url, remote.at)
    return replace(remote, at=at, checksum=None, otherwise=remote.otherwise and local(remote.otherwise, server))


def publish_hub_folder(publisher: Publisher, address: str, files: Mapping[str, bytes]) -> None:
    """Publish a folder of a data set as Hugging Face's hub does: at REPOSITORY@REVISION:FOLDER."""
    repository, _, path = address.partition("@")
    revision, _, folder = path.partition(":")
    revision = quote(revision, safe="")
    listed = [{"type": "file", "path": f"{folder}/{name}", "size": len(content)} for name, content in files.items()]
    publisher.files[f"/api/datasets/{repository}/tree/{revision}/{folder}"] = json.dumps(listed).encode()
    for name, content in files.items():
        publisher.files[f"/datasets/{repository}/resolve/{revision}/{folder}/{name}"] = content


def publish(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, bytes]) -> None:
    """Give files by their SECTION/KEY of ir_datasets, with their true checksums."""
    from ir_datasets.util import DownloadConfig

    contents: dict[str, dict[str, Any]] = {}
    for at, content in files.items():
        section, _, key = at.partition("/")
        name = known_url(at).rpartition("/")[2]
        publisher.files[f"/{name}"] = content
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        contents.setdefault(section, {})[key] = {"url": f"{publisher.url}/{name}", "expected_md5": md5}
    monkeypatch.setattr(DownloadConfig, "_contents", contents)


def known_url(at: str) -> str:
    """The address that ir_datasets really has."""
    section, _, key = at.partition("/")
    return str(json.loads(pkgutil.get_data("ir_datasets", "etc/downloads.json") or b"")[section][key]["url"])


def tar(members: Mapping[str, str]) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return into.getvalue()


def zipped(members: Mapping[str, str]) -> bytes:
    """The same bytes at each call: a member named by text would carry the time of the call, and so another checksum."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return into.getvalue()
