"""The Prefect server that the user has named. Without one, a run starts an embedded server."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.runtime.prefect_task import EMBEDDED


def named_server() -> str | None:
    """Return the address of the server that Prefect's settings name, such as PREFECT_API_URL or a profile, else None.

    Prefect is imported only where a file may name a server: the import takes more than a second.
    """
    if EMBEDDED in os.environ:
        return None
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    if not any(
        path.exists() and text in path.read_text(errors="replace", encoding="utf-8")
        for path, text in _settings_files().items()
    ):
        return None
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def profiles_file() -> Path:
    """Return the file of Prefect's profiles, which may not exist."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    return Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()


def _settings_files() -> dict[Path, str]:
    """Return the files that may have Prefect's settings, each with a text that it has where it names a server."""
    return {
        profiles_file(): "PREFECT_API_URL", Path(".env"): "PREFECT_API_URL", Path("prefect.toml"): "url",
        Path("pyproject.toml"): "[tool.prefect",
    }  # fmt: skip
