"""A user's script finds the installed package, and is checked by mypy --strict with its types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pretrieve

SCRIPT = """\
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import pretrieve

run: pretrieve.FinishedRun = pretrieve.reproduce("quickstart", store="artifacts", set={"seed": 7})
rows = run.metrics
retriever: pretrieve.LoadedRetriever = pretrieve.load(run["retriever_2"])
vectors: NDArray[np.float32] = retriever.encode_queries(["salt"]) @ retriever.encode_passages(["ice"]).T
texts: list[str] = [answer.text for answer in retriever.search("what melts ice", top_k=10)]
evaluation: pretrieve.Evaluation = pretrieve.evaluate(["bm25", retriever], suite="small", only=["SciFact"])
corpus: pretrieve.PseudoQueryCorpus = pretrieve.queries("small/beir@2")
adaptation: pretrieve.Adaptation = pretrieve.adapt("my-collection", start="a/model", hours=1)
page: Path = adaptation.page
plan = pretrieve.recipe("cot_mae").replace(seed=1).plan()
comparison: pretrieve.Comparison = pretrieve.compare(run, "small/masked_lm")
try:
    pretrieve.load("a/model")
except pretrieve.UserError as error:
    print(error)
"""
WRONG = """\
import pretrieve

pretrieve.load(5)
pretrieve.adapt("my-collection", hours="1")
"""


@pytest.mark.slow
def test_a_script_is_checked_with_the_types_of_the_package(tmp_path: Path) -> None:
    root = Path(pretrieve.__file__).parent.parent
    cache = root / ".mypy_cache" / "of_user_scripts"  # of all runs: mypy checks by content what it can reuse
    (tmp_path / "right.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text(WRONG)

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "--python-executable",
         sys.executable, "right.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    errors = [line.partition(" error: ") for line in checked.stdout.splitlines() if " error: " in line]
    assert [where for where, _, _ in errors] == ["wrong.py:3:", "wrong.py:4:"], checked.stdout
    assert all("[arg-type]" in message for _, _, message in errors)


def test_a_folder_of_its_name_does_not_hide_the_package(tmp_path: Path) -> None:
    """A clone is such a folder for a script beside it."""
    (tmp_path / "pretrieve").mkdir()

    done = subprocess.run(
        [sys.executable, "-c", "import pretrieve; print(pretrieve.reproduce.__name__)"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout == "reproduce\n", done.stderr
