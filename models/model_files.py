"""Read and check the files of a model's folder; a folder that is incomplete or inconsistent is refused with one line.

Missing parameters would stay random, additional parameters indicate another model, and NaN spreads to every score. The
results would look plausible, so each case is a `ValueError` that names the file.

Weights are read from safetensors only; `models.pickled_weights` converts those of a `pytorch_model.bin`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

WEIGHTS = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
SHOWN = 3  # parameter names in a message
LONGEST_REASON = 200  # characters of a library's message

UNUSED = re.compile(
    r"(^|\.)pooler\."  # maps [CLS] for next-sentence prediction or a classifier; retrievers pool hidden states
    r"|(^|\.)position_ids$"  # 0, 1, 2, …: a buffer that older releases of transformers saved
    r"|(^|\.)rotary_emb\.inv_freq$"  # a buffer that is computed from the configuration
)
"""Names of weights that are never read, for any kind of model: a file may contain or lack them."""


class UnusableModel(ValueError):
    """A model's folder that cannot be used; the message is one line with the file, what was expected and what to do."""


@contextlib.contextmanager
def refuse_unusable(folder: Path) -> Iterator[None]:
    """Raise `UnusableModel` for any error in the block, which opens the model in `folder`.

    For an invalid configuration libraries raise errors of many classes, such as ZeroDivisionError, KeyError and
    RuntimeError, some with several lines. In this block all of them are caused by the folder.
    """
    try:
        yield
    except (UnusableModel, MemoryError):
        raise
    except ValueError as error:
        raise UnusableModel(one_line(error)) from error
    except Exception as error:
        raise UnusableModel(
            f"{folder}: cannot be opened as a model ({type(error).__name__}: {one_line(error)}); "
            "save it again with transformers' save_pretrained, or name another model"
        ) from error


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return the mapping in a JSON file; `what` describes it in messages. Infinite numbers and NaN are refused."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableModel(f"{path}: expected {what}, found none that can be read ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise UnusableModel(f"{path}: expected {what}, a mapping, found {type(value).__name__}")
    check_numbers(value, path)
    return value


def check_numbers(value: Mapping[str, Any], path: Path) -> None:
    """Raise UnusableModel for an infinite number or NaN at any depth; lists are skipped, since Mamba's contain inf."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            check_numbers(inner, path)
        elif isinstance(inner, float) and not math.isfinite(inner):
            raise UnusableModel(f"{path}: {name}: expected a finite number, found {inner}")


def check_safetensors(folder: Path) -> None:
    """Raise UnusableModel for a folder without safetensors; the message names a pickle that is there instead."""
    if any(folder.glob("model*.safetensors")):
        return
    if pickles := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        raise UnusableModel(
            f"{folder}: expected weights in {WEIGHTS}, found only {pickles[0]}, a pickle, which is not opened since it "
            "can run code; convert it where you trust it, with transformers' save_pretrained"
        )
    raise UnusableModel(f"{folder}: expected weights in {WEIGHTS}, found no such file; save the model as safetensors")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; UnusableModel if it is damaged or contains NaN or infinity."""
    if not path.is_file():
        check_safetensors(path.parent)
        raise UnusableModel(f"{path}: expected weights, found no such file")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:  # KeyError: unknown data type
        raise UnusableModel(
            f"{path}: expected weights as safetensors, found a file that is damaged or cut off "
            f"({one_line(error)}); copy or download it again"
        ) from None
    check_finite(tensors, path)
    return tensors


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise UnusableModel for weights with NaN or infinity; `path` is their file."""
    if broken := [name for name, tensor in tensors.items() if not is_finite(tensor)]:
        raise UnusableModel(
            f"{path}: {first_names(broken)}: expected finite numbers, found NaN or infinity; the training that wrote "
            "them diverged, or the file is damaged: use another checkpoint"
        )


def is_finite(tensor: Tensor) -> bool:
    """Return whether no element is NaN or infinite.

    One pass over the tensor without a copy: `aminmax` returns NaN for both extremes if any element is NaN.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    least, largest = torch.aminmax(tensor if tensor.element_size() > 1 else tensor.float())
    return bool(torch.isfinite(least) & torch.isfinite(largest))


def check_fit(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path, source: str) -> None:
    """Raise UnusableModel unless weights equal `expected` in names, shapes and kinds of numbers.

    `source` names the file that `expected` was derived from, such as config.json.
    """
    check_names(expected.keys() - weights.keys(), weights.keys() - expected.keys(), path, source)
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape:
            shapes = f"{list(tensor.shape)}, found {list(weights[name].shape)}"
            raise UnusableModel(
                f"{path}: by {source} expected {name} of shape {shapes}; use the two files of one model"
            )
        if tensor.is_floating_point() and not weights[name].is_floating_point():
            kind = str(weights[name].dtype).removeprefix("torch.")
            raise UnusableModel(
                f"{path}: expected {name} in floating point, found {kind}; quantised weights are not read, so save the "
                "model in float32, float16 or bfloat16"
            )


def check_names(missing: Collection[str], unexpected: Collection[str], path: Path, source: str) -> None:
    """Raise UnusableModel for missing parameters, which would stay random, and for those of another model."""
    lacking = f"{len(missing)} weights are missing ({first_names(sorted(missing))})" if missing else ""
    additional = f"{len(unexpected)} weights are unexpected ({first_names(sorted(unexpected))})" if unexpected else ""
    if lacking or additional:
        raise UnusableModel(
            f"{path}: expected the model of {source}, but {' and '.join(filter(None, (lacking, additional)))}; use the "
            "two files of one model, or another model"
        )


def first_names(names: Iterable[str]) -> str:
    """Return the first names and the number of the others, for a message."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")


def one_line(value: object) -> str:
    """Return the beginning of an error's message, or of another value's text, in one line."""
    return " ".join(str(value).split())[:LONGEST_REASON]
