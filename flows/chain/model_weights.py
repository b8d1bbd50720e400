"""Models that a recipe or a command names, as inputs of stages."""

from __future__ import annotations

from storage.artifact import Source
from storage.store import sources
from tasks.pretraining.convert_weights import convert_weights, is_pickled
from tasks.retrieval.encode import Model


def model_weights(name: str) -> Model:
    """Return a Hugging Face model by folder, package:NAME/FOLDER or hub name (`storage.store.sources.weights`).

    A model whose weights are only in `pytorch_model.bin` is converted to safetensors by a stage. Its key is therefore
    another than that of the same weights as safetensors: a source is identified by its files.
    """
    return with_safetensors(sources.weights(name))


def with_safetensors(model: Model) -> Model:
    """Return a model, converted if it is from outside the store and its weights are only in `pytorch_model.bin`."""
    if isinstance(model, Source) and not isinstance(model, sources.Absent) and is_pickled(model.path):
        return convert_weights(model)
    return model
