"""The files in a stage's work folder that are not published and that several processes of the stage share.

The processes that train together link them (`tasks.runtime.ranks`), so their names are written here only.
"""

from __future__ import annotations

from pathlib import Path

from storage.store.publishing import SCRATCH

CHECKPOINTS = Path(SCRATCH) / "training"
"""The states of a training from which it resumes."""
TOKENS = Path(SCRATCH) / "tokens"
"""The token ids of pre-training's texts and contexts."""
RECORDS = Path(SCRATCH) / "records"
"""The hashes of files that a later attempt may use."""
PASSAGE_INDEX, PASSAGE_TEXTS = Path(SCRATCH) / "passage_index", Path(SCRATCH) / "passage_texts"
"""The ids and the texts of all passages."""
