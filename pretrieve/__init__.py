"""The Python API: what the commands do, from a script or a notebook.

    import pretrieve

    run = pretrieve.reproduce("quickstart", set={"seed": 7})
    run.metrics                                   # pandas: run, split, metric, value, low, high
    retriever = pretrieve.load(run["retriever_2"])
    retriever.search("what melts ice on roads", top_k=3)

Functions call the code of the commands of the same names, on the same store. A mistake that the user can fix raises
`UserError` with the command's message. Stages run in this process, without a Prefect server.
"""

from pretrieve.adaptations import Adaptation, adapt
from pretrieve.comparisons import Comparison, compare
from pretrieve.evaluations import Evaluation, evaluate
from pretrieve.pseudo_queries import PseudoQueryCorpus, queries
from pretrieve.recipes import PlannedRecipe, recipe
from pretrieve.retrievers import LoadedRetriever, load
from pretrieve.runs import Checkpoint, FinishedRun, open_run, reproduce
from storage.errors import UserError

__all__ = [
    "Adaptation",
    "Checkpoint",
    "Comparison",
    "Evaluation",
    "FinishedRun",
    "LoadedRetriever",
    "PlannedRecipe",
    "PseudoQueryCorpus",
    "UserError",
    "adapt",
    "compare",
    "evaluate",
    "load",
    "open_run",
    "queries",
    "recipe",
    "reproduce",
]
