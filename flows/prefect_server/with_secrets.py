"""Run a container's command with secrets from files: `python -m flows.prefect_server.with_secrets FOLDER COMMAND...`.

In the environment `{name}` stands for the content of FOLDER/name. Compose provides secrets as files, while Prefect
reads passwords from variables, and addresses contain them. So they are in the environment of processes only, and not
in that of the container, which `docker inspect` prints.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

PLACE = re.compile(r"\{([a-z_]+)\}")


def with_secrets(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment with secrets in their places. Ends the process where a file is missing or empty."""

    def secret(place: re.Match[str]) -> str:
        file = folder / place[1]
        text = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
        if not text:
            sys.exit(f"{file}: missing or empty; expected a secret, as .env.example describes")
        return text

    return {name: PLACE.sub(secret, value) for name, value in environment.items()}


def main(folder: str, *command: str) -> None:
    """Replace this process by the command."""
    os.execvpe(command[0], command, with_secrets(os.environ, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
