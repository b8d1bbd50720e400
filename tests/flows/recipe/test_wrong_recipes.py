"""Whatever stands in a recipe or a change of one: an answer in seconds, one line, exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.in_process import refused

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))

TEXTS = {
    "alias bomb": (BOMB, "line 5: .*aliases and values expand to more than"),
    "merge bomb": (MERGED, "expand to more than"),
    "alias of itself": ("seed: 1\ntitle: &a [*a]\n", "line 2: .*inside"),
    "deep sequences": ("title: " + "[" * 5000, "nested deeper than"),
    "deep mappings": ("title: " + "{a: " * 5000, "nested deeper than"),
    "deep blocks": ("".join(f"{' ' * n}a:\n" for n in range(500)), "nested deeper than"),
    "5,000 digits": (f"seed: {'1' * 5000}\n", "line 1: .*64 bits"),
    "5,000 hexadecimal digits": (f"seed: 0x{'f' * 5000}\n", "line 1: .*64 bits"),
    "5,000 digits of base 60": (f"seed: 1{':59' * 5000}\n", "line 1: .*64 bits"),
    "5,000 digits before a point": (f"seed: {'1' * 5000}.0\n", "line 1: .*not a number"),
    "date": ("title: 2020-13-45\n", "is missing"),
    "date and time": ("title: 2020-02-30 25:61:61\n", "is missing"),
    "tag of a date": ("title: !!timestamp 2020-13-45\n", "line 1: .*tag"),
    "tag of a number": ("seed: !!int abc\n", "line 1: .*'abc' is not a whole number"),
    "tag of a broken number": ("seed: !!float abc\n", "line 1: .*'abc' is not a number"),
    "tag of a truth value": ("seed: !!bool abc\n", "line 1: .*'abc' is not true or false"),
    "empty number": ("seed: !!int\n", "line 1: .*'' is not a whole number"),
    "tag of bytes": ("title: !!binary abc\n", "line 1: .*tag"),
    "tag of a set": ("title: !!set {a, b}\n", "line 1: .*tag"),
    "tag of pairs": ("title: !!omap [a, b]\n", "line 1: .*tag"),
    "tag of Python": ("title: !!python/object/apply:os.system [ls]\n", "line 1: .*tag"),
    "tag on another kind": ("title: !!int [1]\n", "line 1: not valid YAML"),
    "mapping that is a sequence": ("title: !!map [1]\n", "line 1: not valid YAML"),
    "list as key": ("? [a, b]\n: 1\n", "line 1: .*key"),
    "mapping as key": ("seed: 1\n? {a: b}\n: 1\n", "line 2: .*key"),
    "number as key": ("seed: 1\n2: 3\n", "line 2: .*key.*quotes"),
    "truth value as key": ("seed: 1\nyes: 3\n", "line 2: .*key.*quotes"),
    "unhashable merge": ("<<: [1]\n", "line 1: not valid YAML"),
    "half a surrogate pair": ('title: "\\ud800"\n', "line 1: .*character"),
    "escape of a control character": ('title: a\ndescription: "\\e[31m"\n', "line 2: .*character"),
    "NUL": ('title: "a\\0b"\n', "line 1: .*character"),
    "no character": ('title: "\\UFFFFFFFF"\n', "line 1: not valid YAML"),
    "number of YAML's version": (f"%YAML {'1' * 5000}.1\n---\na: 1\n", "line 1: not valid YAML"),
    "control character": ("seed: 1\ntitle: \x07\n", "line 2: not valid YAML"),
    "two documents": ("seed: 1\n---\nseed: 2\n", "line 2: not valid YAML"),
    "nothing": ("", "expected sections"),
    "large": ("title: " + "x" * 2_000_000, "bytes.*at most"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_recipe_that_cannot_be_read_is_one_line(tmp_path: Path, what: str) -> None:
    text, message = TEXTS[what]
    file = tmp_path / "recipe.yaml"
    file.write_text(with_sections(text) if message == "is missing" else text)

    line = refused("plan", str(file), "--store", str(tmp_path / "store"), seconds=5)

    assert str(file) in line
    assert re.search(message, line), line
    assert len(line) < 1000


def with_sections(text: str) -> str:
    """A text that is read as YAML; its sections are then missing."""
    return f"{text}pretrain: null\n"


CHANGES = {
    "5,000 digits": ("bm25.k1=" + "1" * 5000, "64 bits"),
    "date": ("bm25.k1=2020-13-45", r"bm25\.k1"),
    "tag": ("bm25.k1=!!int abc", "not a whole number"),
    "tag of a date": ("title=!!timestamp 2020-13-45", "tag"),
    "deep lists": ("reported=[" + "[" * 100, "nested deeper"),
    "alias of itself": ("title=&a [*a]", "inside"),
    "list as key": ("reported={[a]: 1}", "key"),
    "superscript as place": ("rounds.².name=x", "no section '²'"),
    "superscript as last place": ("rounds.²=x", "expected a number below"),
    "5,000 digits as place": (f"rounds.{'1' * 5000}.name=x", "no section"),
    "negative place": ("rounds.-1.name=x", "no section '-1'"),
    "half a surrogate pair": ('title="\\ud800"', "character"),
    "nothing before the point": (".k1=1", "no section ''"),
    "nothing after the point": ("bm25.=1", "unknown key"),
    "no key": ("=1", "expected section.key=value"),
    "long key": ("x" * 100_000 + ".a=1", "no section"),
    "long value": ("bm25.k1=" + "x" * 100_000, r"bm25\.k1"),
    "escape sequence": ("bm25.\x1b[31mk1=1", "unknown key"),
    "undecodable byte": ("bm25.k1=\udcff", "not a YAML value"),
    "line break": ("bm25.k1\n=1", "unknown key"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_cannot_be_read_is_one_line(tmp_path: Path, what: str) -> None:
    change, message = CHANGES[what]

    line = refused("plan", "quickstart", "--store", str(tmp_path), "--set", change, seconds=5)

    assert re.search(message, line), line
    assert len(line) < 5000
