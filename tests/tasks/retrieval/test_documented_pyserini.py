"""docs/evaluation.md says how pyserini's searcher is imported in this environment."""

import re
import subprocess
import sys

import pytest

from tests.test_readme import ROOT


@pytest.mark.slow
def test_the_documented_lines_import_pyserini_s_searcher() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text()
    [lines] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "LuceneSearcher" in block]

    ended = subprocess.run(
        [sys.executable, "-c", f"{lines}\nprint(LuceneSearcher.__name__)"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip

    assert ended.stdout.splitlines()[-1:] == ["LuceneSearcher"], ended.stderr
