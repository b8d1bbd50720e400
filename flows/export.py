"""`pretrieve export`: a checkpoint as a Hugging Face folder with a model card, outside the store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from flows.inspect_store import find, lineage, out
from flows.terminal import Terminal
from storage.artifact import Manifest
from storage.errors import UserError
from storage.evidence import LOGS, MANIFEST
from storage.files import write_atomically, writing
from storage.store import Store
from tasks.initialise import beside

GENERATORS = ("train_generator", "finetune_generator")


def export_checkpoint(key: str, folder: Path, store_folder: Path) -> None:
    """Copy the checkpoint's files to `folder` and write README.md, which says how it was made."""
    store = Store.open(store_folder)
    made, manifest = find(key, store)
    if manifest.schema != "Checkpoint":
        raise UserError(
            f"{key}: {manifest.stage} made {manifest.schema}, not a checkpoint; `pretrieve plan` lists the keys"
        )
    must_be_free(folder)
    if problems := store.damage(made):
        raise UserError(f"{'; '.join(problems)}; run the recipe again to rebuild it")
    for name in manifest.files:
        with writing(folder / name) as temporary:
            shutil.copyfile(made / name, temporary)
    write_atomically(folder / "README.md", model_card(manifest, store))
    out.print(f"{manifest.stage} {manifest.key}: {len(manifest.files)} files and README.md in {folder}")


def must_be_free(folder: Path) -> None:
    """Refuse a folder that holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: expected a folder that does not exist yet, or an empty one")


def model_card(manifest: Manifest, store: Store) -> str:
    """What the model is, how to use it, and the artifacts that rebuild it."""
    console = Terminal(width=120, color_system=None)
    with console.capture() as tree:
        console.print(lineage(manifest, store))
    versions = ", ".join(f"{name} {version}" for name, version in manifest.built["versions"].items())
    return f"""---
library_name: transformers
tags: [retrieval, pretrieve]
---
# {manifest.stage} {manifest.key}

Made by the `{manifest.stage}` stage of pretrieve {manifest.built["at"]} with {versions}.
{_opens(manifest)}
{" ".join(beside(manifest.files))}

## Settings

```json
{json.dumps(dict(manifest.settings), indent=1, ensure_ascii=False)}
```

## Lineage

```
{tree.get()}```

`{MANIFEST}` and `{LOGS}/` of the artifact (hash {manifest.hash}) stay in the store it came from.
"""


def _opens(manifest: Manifest) -> str:
    if manifest.stage in GENERATORS:
        return "It opens with `AutoModelForSeq2SeqLM.from_pretrained(FOLDER)`; recipes name it in `queries.model`."
    also = "; where the folder has `modules.json`, also with\n`SentenceTransformer(FOLDER)`"
    return f"It opens with `AutoModel.from_pretrained(FOLDER)`{also}."
