"""A user's script is checked by mypy --strict with the types of the installed package."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
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
    """In an environment that has the package by its path: checkers do not run the hooks of editable installations."""
    venv.create(tmp_path / "environment", symlinks=True)
    packages = next((tmp_path / "environment").glob("lib/python*/site-packages"))
    root = Path(pretrieve.__file__).parent.parent
    cache = root / ".mypy_cache" / "of_user_scripts"  # of all runs: mypy checks by content what it can reuse
    (packages / "paths.pth").write_text(f"{root}\n{sysconfig.get_path('purelib')}\n")
    (tmp_path / "right.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text(WRONG)

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "--python-executable",
         "environment/bin/python", "right.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    errors = [line.partition(" error: ") for line in checked.stdout.splitlines() if " error: " in line]
    assert [where for where, _, _ in errors] == ["wrong.py:3:", "wrong.py:4:"], checked.stdout
    assert all("[arg-type]" in message for _, _, message in errors)
