"""Measure how fast the project is, compared with baselines: `make bench`, or `python -m benchmarks [NAME...]`.

One file measures one stage. Its `cases(device, small)` yields the contenders, which do the same work interleaved
(`contest.py`): the project (`OURS`) and its baselines. Its `DEVICES` lists the devices that it can use. `small` is a
size for the tests, which check that the benchmark runs and that the contenders agree. `results.py` writes the results
and says when a ratio has fallen; `page.py` writes `docs/speed.md` and its figure.
"""

NAMES = (
    "splitting", "generation", "batches", "pretraining", "earlier_steps", "compiled_layers",
    "variable_length", "bm25_mining", "retriever_training", "encoding", "exact_search", "similarities", "evaluation",
    "bookkeeping",
)  # fmt: skip
"""In the pipeline's order."""
