"""What every fuzz test draws from, and what it accepts: exit code 0, or 2 with one line on standard error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.in_process import ACTS, Ended

SECONDS = 10.0  # of CPU that an example may take
EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
"""How many examples each test draws at random (`make fuzz`); without, it draws few, the same each time."""


def fuzz(few: int) -> Callable[[Any], Any]:
    """The settings of a fuzz test: `few` examples in `make test`."""
    return settings(
        max_examples=int(EXAMPLES or few), derandomize=EXAMPLES is None, database=None, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )  # fmt: skip


def check(ended: Ended, *, codes: tuple[int, ...] = (0, 2)) -> None:
    """Fail where a command ended otherwise than it may."""
    assert ended.code in codes, f"exit code {ended.code}: {ended.err}"
    assert not ACTS.search(ended.out + ended.err)
    if ended.code == 2:
        lines = ended.err.splitlines()
        assert len(lines) == 1, ended.err
        assert lines[0].startswith("pretrieve: "), ended.err


SHARP = [
    "", " ", "\t", "\n", "\r\n", "\0", "\x1b[31m", "\x85", "\u2028", "\u202e", "\ufeff", "\ud800", "\U0010ffff", "é",
    "e\u0301", "²", "١", "null", "~", "true", "nan", ".nan", ".inf", "-.inf", "1e999", "1e-4", "0x", "0o17", "1_000",
    "1:30", "-0", "2020-02-30", "~nosuchuser", "package:..", "../..", "/", "/dev/null", "*", "[", "[/]", "{", "}", "%s",
    "{0}", "$HOME", "'", '"', "`", "#", "&a", "*a", "!!int abc", "!!python/name:os.system", "<<", "=", "?", "|", ">",
    "%YAML 9.9", "---", "...", "\\ud800", "NaN", "-1", "9" * 30, "9" * 400, "x" * 300, "x" * 5000,
]  # fmt: skip
NUMBERS = [0, 1, -1, 2**31, 2**63 - 1, 2**63, 10**30, 0.0, -0.0, 1e308, 1e-320]
odd_texts = st.sampled_from(SHARP) | st.text(max_size=12)
odd_numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats()
odd_leaves = st.none() | st.booleans() | odd_numbers | odd_texts
odd_values = st.recursive(
    odd_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_texts, inner, max_size=3), max_leaves=6
)


def places_of(value: Any) -> list[tuple[Any, ...]]:
    """The paths of all values in sections and lists."""
    results: list[tuple[Any, ...]] = [()]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        results += [(key, *rest) for rest in places_of(part)]
    return results


@st.composite
def edited(draw: st.DrawFn, text: bytes) -> bytes:
    """A text with a few of its lines or bytes changed."""
    for _ in range(draw(st.integers(1, 3))):
        lines = text.splitlines(keepends=True) or [b""]
        number = draw(st.integers(0, len(lines) - 1))
        at = draw(st.integers(0, len(lines[number])))
        piece = draw(odd_texts.map(lambda odd: odd.encode("utf-8", "surrogatepass")) | st.binary(max_size=6))
        what = draw(st.sampled_from(["insert", "replace", "drop", "twice", "cut", "crlf", "mark"]))
        if what == "insert":
            lines[number] = lines[number][:at] + piece + lines[number][at:]
        elif what == "replace":
            lines[number] = piece + b"\n"
        elif what == "drop":
            del lines[number]
        elif what == "twice":
            lines.insert(number, lines[number])
        elif what == "cut":
            lines = [*lines[:number], lines[number][:at]]
        elif what == "crlf":
            lines = [line.replace(b"\n", b"\r\n") for line in lines]
        else:
            lines[0] = b"\xef\xbb\xbf" + lines[0]
        text = b"".join(lines)
    return text


def run(seconds: float) -> int:
    """Run the fuzz tests with other seeds until the time is over; the exit code of the first failure, else 0."""
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        command = [sys.executable, "-m", "pytest", "-q", "-x", str(Path(__file__).parent)]
        command += ["-p", "no:cacheprovider", f"--hypothesis-seed={random.randrange(2**32)}"]
        examples = {"FUZZ_EXAMPLES": "100"}
        if code := subprocess.run(command, env=os.environ | examples, check=False).returncode:
            sys.stderr.write(f"again: FUZZ_EXAMPLES=100 {' '.join(command)}\n")
            return code
        rounds += 1
    sys.stdout.write(f"{rounds} rounds of 100 examples of each test: nothing was found\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1])))
