"""Models from outside whose weights are in PyTorch's own format, converted to safetensors once."""

from __future__ import annotations

from pathlib import Path

from models.model_files import refuse_unusable
from models.pickled_weights import convert, pickled_folders
from storage.artifact import Source
from storage.errors import UserError
from storage.files import writing_files
from storage.tables import ConvertedModel
from tasks.stage import stage


@stage(version=1, table=ConvertedModel)
def convert_weights(out: Path, weights: Source) -> None:
    """Write the model's folder with safetensors instead of `pytorch_model.bin`; UserError for any other pickle."""
    with writing_files(out) as folder:
        convert_folder(weights.path, folder)


def is_pickled(model: Path) -> bool:
    """Return whether weights in a model's folder are only in `pytorch_model.bin`."""
    return bool(pickled_folders(model))


def convert_folder(model: Path, out: Path) -> None:
    """Write a model's folder to `out` with its weights as safetensors; UserError if they cannot be read."""
    try:
        with refuse_unusable(model):
            convert(model, out)
    except ValueError as error:
        raise UserError(str(error)) from None
