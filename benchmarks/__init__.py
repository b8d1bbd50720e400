"""How fast the project is, beside every peer: `make bench`, or `python -m benchmarks [NAME...]`.

One file a stage. It gives `cases(device, small)`: what is measured, with the project (`OURS`) and its peers as
contenders that do the same work by turns (`contest.py`); `DEVICES` says on what it can run. `small` is a size at which
the tests run it, to see that it still runs and that the contenders' results are equal. `results.py` says what is
written and when a ratio has fallen; `page.py` writes `docs/speed.md` and its picture.
"""

NAMES = (
    "splitting", "generation", "batches", "pretraining", "bm25_mining", "retriever_training", "encoding",
    "exact_search", "similarities", "evaluation", "bookkeeping",
)  # fmt: skip
"""In the pipeline's order."""
