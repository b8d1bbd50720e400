"""A redis-server of a test's own, on a free port, with a password, that keeps nothing on disk."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port

PASSWORD = "s3cret-word"


@dataclass
class Redis:
    """Start it, stop it, let it sleep."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: Any = None

    @property
    def address(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        from redis import Redis as Client

        return Client.from_url(self.address, decode_responses=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        from redis.exceptions import RedisError

        (self.folder / "redis.conf").write_text(
            f'bind 127.0.0.1\nport {self.port}\nrequirepass {PASSWORD}\nsave ""\nappendonly no\ndir {self.folder}\n'
        )
        with (self.folder / "redis.log").open("a") as log:
            self.process = subprocess.Popen(["redis-server", str(self.folder / "redis.conf")], stdout=log, stderr=log)
        deadline = time.monotonic() + 300
        while True:
            try:
                self.client().ping()
                return
            except RedisError:
                assert time.monotonic() < deadline, (self.folder / "redis.log").read_text()
                time.sleep(0.1)

    def stop(self) -> None:
        """End it; what it knew is lost."""
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def sleep(self) -> None:
        """It answers nobody until it is woken."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)
