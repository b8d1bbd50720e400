"""The decoders and heads of a pre-training: which parameters they are, and loading those of an earlier one."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from models.model_files import read_weights
from models.retrievers.retriever import HEADS_FILE
from storage.errors import UserError
from tasks.training.checkpoints import load_parameters


def heads_of(objective: nn.Module, encoder: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of an objective that are not the encoder's, by name."""
    of_encoder = {id(parameter) for parameter in encoder.parameters()}
    return {name: value for name, value in objective.named_parameters() if id(value) not in of_encoder}


def continue_heads(heads: dict[str, nn.Parameter], folder: Path) -> None:
    """Load the heads of an earlier pre-training with the same paper's objective, or with one that it builds on."""
    path = folder / HEADS_FILE
    if not path.is_file():
        raise UserError(
            f"pretrain.heads: the backbone has no {HEADS_FILE} to continue; "
            "start from an exported pre-training, or say fresh"
        )
    try:
        load_parameters(heads, read_weights(path), path)
    except ValueError as error:
        raise UserError(f"pretrain.heads: {error}") from None
