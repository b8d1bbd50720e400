"""Models of the Hugging Face hub, or of its cache on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from storage.errors import UserError

KEY = re.compile(r"[0-9a-f]{6,24}")
ADVICE = "give a model folder (a query generator can be trained: docs/collections.md#without-train-queries)"
UNUSED = ["*.h5", "*.msgpack", "*.ot", "onnx/*", "openvino/*"]


def snapshot(name: str, *, only_here: bool) -> Path:
    """Return the folder of a hub model's newest commit, downloaded first unless `only_here`.

    Raises UserError where the hub or, with `only_here`, the cache has no such model, and where the hub is unreachable.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, ignore_patterns=UNUSED, local_files_only=only_here))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, HFValidationError):
            why = "no model on a hub can have this name"
        elif only_here:
            why = "the local hub cache has no such model either (a run asks the hub)"
        elif HF_HUB_OFFLINE:
            why = "HF_HUB_OFFLINE=1 limits the search to the local hub cache, which has no such model"
        elif isinstance(error, RepositoryNotFoundError):
            why = "the hub has no such model, or gives it only after a login"
        elif isinstance(error, HfHubHTTPError):
            why = f"the hub refused the request with HTTP status {error.response.status_code}"
        else:
            why = "the hub cannot be reached, since there is no network or the network refuses it"
        raise UserError(f"{name}: no folder on this machine, and {why}; {_advice(name)}") from None


def _advice(name: str) -> str:
    """Return what to do about a model that is nowhere. The keys of a store are no names of models."""
    if KEY.fullmatch(name):
        return f"for a checkpoint with this key, give the folder that `pretrieve export {name} DIR` writes"
    return ADVICE
