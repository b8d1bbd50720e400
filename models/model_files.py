"""What a model's folder holds, read so that it fits completely or is refused in one line.

Parameters that a file lacks would stay random, parameters that it has too many belong to another model, and NaN spreads
to every score. Each of these gives results that look like results, so each is a `ValueError` that names the file.

Weights are read from safetensors only. A pickle (`pytorch_model.bin`) is never opened: it can run code.
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
LONGEST_REASON = 200  # characters of what a library says

UNUSED = re.compile(
    r"(^|\.)pooler\."  # maps [CLS] for next-sentence prediction or a classifier; retrievers pool hidden states
    r"|(^|\.)position_ids$"  # 0, 1, 2, …: a buffer that older releases of transformers saved
    r"|(^|\.)rotary_emb\.inv_freq$"  # another one, which follows from the configuration
)
"""Weights that nothing here reads, of any kind of model: they may be left over in a file, or be missing."""


class UnusableModel(ValueError):
    """A model's folder cannot be used. One line: which file, what was expected, what to do."""


@contextlib.contextmanager
def refuse_unusable(folder: Path) -> Iterator[None]:
    """Raise `UnusableModel` for whatever goes wrong in the block, which opens the model in `folder`.

    Libraries raise almost anything for a configuration that makes no sense: ZeroDivisionError, KeyError, and
    RuntimeError of several lines. Here these are all the folder's fault.
    """
    try:
        yield
    except (UnusableModel, MemoryError):
        raise
    except ValueError as error:
        raise UnusableModel(_one_line(error)) from error
    except Exception as error:
        raise UnusableModel(
            f"{folder}: cannot be opened as a model ({type(error).__name__}: {_one_line(error)}); "
            "save it again with transformers' save_pretrained, or name another model"
        ) from error


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The mapping in a JSON file; `what` says what it is in messages. Numbers that are infinite or NaN are refused."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableModel(f"{path}: expected {what}, found none that can be read ({_one_line(error)})") from None
    if not isinstance(value, dict):
        raise UnusableModel(f"{path}: expected {what}, a mapping, found {type(value).__name__}")
    check_numbers(value, path)
    return value


def check_numbers(value: Mapping[str, Any], path: Path) -> None:
    """Refuse a configuration with a number that is infinite or NaN, at any depth but in lists, as Mamba's."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            check_numbers(inner, path)
        elif isinstance(inner, float) and not math.isfinite(inner):
            raise UnusableModel(f"{path}: {name}: expected a finite number, found {inner}")


def check_safetensors(folder: Path) -> None:
    """Refuse a folder without weights that can be read safely; the error says how to convert pickles."""
    if any(folder.glob("model*.safetensors")):
        return
    if pickles := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        raise UnusableModel(
            f"{folder}: expected weights in {WEIGHTS}, found only {pickles[0]}, a pickle, which is not opened since it "
            "can run code; convert it where you trust it, with transformers' save_pretrained"
        )
    raise UnusableModel(f"{folder}: expected weights in {WEIGHTS}, found no such file; save the model as safetensors")


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, by name. One that cannot be read, or holds NaN or infinity, is refused."""
    if not path.is_file():
        check_safetensors(path.parent)
        raise UnusableModel(f"{path}: expected weights, found no such file")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:  # KeyError: no such kind of number
        raise UnusableModel(
            f"{path}: expected weights as safetensors, found a file that is damaged or cut off "
            f"({_one_line(error)}); copy or download it again"
        ) from None
    check_finite(tensors, path)
    return tensors


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights with NaN or infinity; `path` is where they come from."""
    if broken := [name for name, tensor in tensors.items() if not is_finite(tensor)]:
        raise UnusableModel(
            f"{path}: {some(broken)}: expected finite numbers, found NaN or infinity; the training that wrote them "
            "diverged, or the file is damaged: use another checkpoint"
        )


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite: in one pass without a copy. NaN is least and largest."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    least, largest = torch.aminmax(tensor if tensor.element_size() > 1 else tensor.float())
    return bool(torch.isfinite(least) & torch.isfinite(largest))


def check_fit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path, said_by: str) -> None:
    """Refuse weights that are not those of `wanted`, by name, shape and kind of number.

    `said_by` names what `wanted` was made of, such as config.json.
    """
    check_names(wanted.keys() - found.keys(), found.keys() - wanted.keys(), path, said_by)
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            shapes = f"{list(tensor.shape)}, found {list(found[name].shape)}"
            raise UnusableModel(
                f"{path}: by {said_by} expected {name} of shape {shapes}; use the two files of one model"
            )
        if tensor.is_floating_point() and not found[name].is_floating_point():
            kind = str(found[name].dtype).removeprefix("torch.")
            raise UnusableModel(
                f"{path}: expected {name} in floating point, found {kind}; quantised weights are not read, so save the "
                "model in float32, float16 or bfloat16"
            )


def check_names(missing: Collection[str], unexpected: Collection[str], path: Path, said_by: str) -> None:
    """Refuse weights that lack parameters, which would stay random, or have those of another model."""
    lacks = f"{len(missing)} weights are missing ({some(sorted(missing))})" if missing else ""
    exceeds = f"{len(unexpected)} weights are of no part of it ({some(sorted(unexpected))})" if unexpected else ""
    if lacks or exceeds:
        raise UnusableModel(
            f"{path}: expected the model of {said_by}, but {' and '.join(filter(None, (lacks, exceeds)))}; use the two "
            "files of one model, or another model"
        )


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:LONGEST_REASON]
