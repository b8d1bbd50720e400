"""The texts that slow tests and tests of services expect are texts of the product: a changed message shows at once.

`make check` runs none of these tests. Without this one, a message or a heading that changes breaks them unnoticed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("pretrieve", "flows", "tasks", "storage", "models", "benchmarks", "configs")
WORDS = re.compile(r"\b[A-Za-z]+(?: [a-z]+)+\b")
"""Words in sequence; numbers, names and punctuation between them may be inserted into a message."""
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
SLOW = [path for path in TESTS if "services" in path.parts or "pytest.mark.slow" in path.read_text()]
NO_TEXTS = {"a fault", "authentication failed", "not cuda", "view late"}  # of the test, of PostgreSQL, values


def strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def product_text() -> str:
    """Every string of the product and of test helpers, and every template, with single spaces."""
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if path not in TESTS]
    files = [
        path for folder in PRODUCT for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".j2", ".yaml")
    ]
    texts = [text for path in (*files, *helpers) if path.suffix == ".py" for text in strings(path)]
    texts += [path.read_text() for path in files if path.suffix != ".py"]
    return re.sub(r"\s+", " ", "\n".join(texts))


def expected_texts(path: Path) -> Iterator[str]:
    """Yield what a file's tests look for, as `"text" in output` or as `match="text"`."""
    for node in ast.walk(ast.parse(path.read_text())):
        values: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            values = [node.left]
        elif isinstance(node, ast.Call):
            values = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
        for value in values:
            parts = value.values if isinstance(value, ast.JoinedStr) else [value]
            for part in parts:
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def is_text(words: str, texts: str) -> bool:
    """Whether the words occur in the texts; of three or more, the first or the last may be a value in the text."""
    but_first, but_last = words.partition(" ")[2], words.rpartition(" ")[0]
    return words in texts or (words.count(" ") > 1 and (but_first in texts or but_last in texts))


@pytest.mark.parametrize("path", SLOW, ids=lambda path: path.relative_to(ROOT / "tests").as_posix())
def test_what_a_slow_test_expects_is_a_text_of_the_product(path: Path) -> None:
    expected = set(expected_texts(path))
    own = "\n".join(set(strings(path)) - expected)  # such as programs and stages of the test

    words = {words for text in expected for words in WORDS.findall(text)} - NO_TEXTS
    assert {word for word in words if not is_text(word, product_text()) and not is_text(word, own)} == set()


def test_a_changed_text_shows(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text('assert "1 of 2 hosts was never written so" in f"{printed}"\n')

    assert list(expected_texts(tmp_path / "test_it.py")) == ["1 of 2 hosts was never written so"]
    assert WORDS.findall("1 of 2 hosts was never written so") == ["hosts was never written so"]
    assert not is_text("hosts was never written so", product_text())
    assert is_text("did you mean pretrain", product_text())
