"""Convert the weights of a model's folder from `pytorch_model.bin` to safetensors.

Such a file is a pickle, and unpickling can run any code. It is opened in this module only, by PyTorch's restricted
unpickler (`weights_only`), which builds tensors and plain containers and calls nothing else. Other pickles (`*.pt`,
`*.ckpt`, PyTorch's tar format from before 2018) are refused.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.model_files import WEIGHTS, UnusableModel, one_line

PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")  # one file, or a shard; pytorch_model.fp16.bin is neither
COPIED = {".json", ".txt", ".model", ".jinja", ".safetensors"}  # configuration, tokenizer and other weights


def pickled_folders(model: Path) -> list[Path]:
    """Return a model's folders, itself or folders in it, with only `pytorch_model.bin` or its shards as weights."""
    folders = [model, *sorted(folder for folder in model.glob("*") if folder.is_dir())]
    return [folder for folder in folders if _pickles(folder) and not any(folder.glob("model*.safetensors"))]


def _pickles(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("pytorch_model*.bin") if PICKLED.fullmatch(file.name))


def convert(model: Path, out: Path) -> None:
    """Write a model's folder to `out` with its pickled weights as safetensors; tokenizer and configuration are copied.

    Raises UnusableModel for a file with anything but tensors by name, which is then not loaded, and for a tensor that
    is in two files: they are of two checkpoints.
    """
    for file in sorted([*model.glob("*"), *model.glob("*/*")]):  # parts such as 2_Dense/ contain no folders
        merged = file.name.endswith(".bin.index.json")  # lists the shards of the weights
        if file.is_file() and file.suffix in COPIED and not merged:
            target = out / file.relative_to(model)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    for folder in pickled_folders(model):
        weights: dict[str, Tensor] = {}
        for file in _pickles(folder):
            tensors = read_pickle(file)
            if twice := sorted(weights.keys() & tensors.keys()):
                raise UnusableModel(
                    f"{file}: {one_line(twice[0])}: another pytorch_model*.bin there has it, too; keep one checkpoint"
                )
            weights |= tensors
        target = out / folder.relative_to(model)
        target.mkdir(parents=True, exist_ok=True)
        save_file(_without_shared_memory(weights), target / WEIGHTS, metadata={"format": "pt"})


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a `pytorch_model.bin` by name; UnusableModel if it has other content or is damaged."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the format's deprecated classes
            content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a pickle that was made up can raise nearly any error
        raise UnusableModel(
            f"{path}: expected tensors by name, found a damaged file or other objects, which are not loaded since they "
            f"can run code ({type(error).__name__}); save the model as safetensors where you trust it"
        ) from error
    if not isinstance(content, Mapping):
        raise UnusableModel(f"{path}: expected tensors by name, found {one_line(type(content).__name__)}")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or not _is_plain(value):
            raise UnusableModel(f"{path}: {one_line(name)}: expected a dense tensor that the file holds completely")
    return {name: value.detach() for name, value in content.items()}


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense and on the CPU, and its file holds all of its elements.

    A view with strides of 0 may claim any size: a copy of it could need more memory than the machine has.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    return tensor.nbytes <= tensor.untyped_storage().nbytes()


def _without_shared_memory(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors, with a copy of each that shares memory with another: safetensors refuses those."""
    storages: set[int] = set()
    separate = {}
    for name, tensor in weights.items():
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone(memory_format=torch.contiguous_format) if address in storages else tensor
        storages.add(address)
    return {name: tensor.contiguous() for name, tensor in separate.items()}
