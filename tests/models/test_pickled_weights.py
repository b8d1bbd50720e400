"""Weights in `pytorch_model.bin` are converted to equal safetensors, and nothing in a pickle is executed."""

import io
import pickle
import tarfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.layers.bert import BertForMaskedLM
from models.model_files import WEIGHTS, UnusableModel
from models.pickled_weights import convert, pickled_folders, read_pickle
from tests.tiny import save_backbone

PICKLE = "pytorch_model.bin"


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    (tmp_path / "backbone").mkdir()
    return save_backbone(tmp_path / "backbone")


def pickled(folder: Path, *, zipped: bool = True, rename: Callable[[str], str] = str) -> dict[str, Tensor]:
    """Replace the safetensors of a folder by a pickle; return its tensors."""
    weights = OrderedDict((rename(name), tensor) for name, tensor in load_file(folder / WEIGHTS).items())
    torch.save(weights, folder / PICKLE, _use_new_zipfile_serialization=zipped)
    (folder / WEIGHTS).unlink()
    return weights


def old_name(name: str) -> str:
    """Return a weight's name in the checkpoints of 2018 and 2019."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("zipped", [True, False])
def test_the_format_of_either_age_and_old_names_give_the_same_model(
    backbone: Path, tmp_path: Path, zipped: bool
) -> None:
    expected = BertForMaskedLM.load(backbone).state_dict()
    pickled(backbone, zipped=zipped, rename=old_name)

    convert(backbone, tmp_path / "out")

    assert not pickled_folders(tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.bin"))
    assert {path.name for path in backbone.iterdir()} - {PICKLE} <= {path.name for path in (tmp_path / "out").iterdir()}
    converted = BertForMaskedLM.load(tmp_path / "out").state_dict()
    assert all(torch.equal(converted[name], tensor) for name, tensor in expected.items())


def test_shards_are_merged_and_tied_copies_kept(tmp_path: Path) -> None:
    shared = torch.arange(6.0).view(2, 3)
    model = tmp_path / "model"
    (model / "2_Dense").mkdir(parents=True)
    torch.save({"a": shared, "b": shared}, model / "pytorch_model-00001-of-00002.bin")
    torch.save({"c": torch.nn.Parameter(shared.t())}, model / "pytorch_model-00002-of-00002.bin")
    (model / "pytorch_model.bin.index.json").write_text("{}")
    torch.save({"linear.weight": shared}, model / "2_Dense" / PICKLE)

    convert(model, tmp_path / "out")

    weights = load_file(tmp_path / "out" / WEIGHTS)
    assert {name: tensor.tolist() for name, tensor in weights.items()} == {
        "a": shared.tolist(), "b": shared.tolist(), "c": shared.t().tolist()
    }  # fmt: skip
    assert torch.equal(load_file(tmp_path / "out" / "2_Dense" / WEIGHTS)["linear.weight"], shared)
    assert not (tmp_path / "out" / "pytorch_model.bin.index.json").exists()


def test_a_variant_in_another_precision_is_not_merged(backbone: Path, tmp_path: Path) -> None:
    weights = pickled(backbone)
    torch.save({name: tensor.half() for name, tensor in weights.items()}, backbone / "pytorch_model.fp16.bin")

    convert(backbone, tmp_path / "out")

    converted = load_file(tmp_path / "out" / WEIGHTS)
    assert {name: tensor.dtype for name, tensor in converted.items()} == dict.fromkeys(weights, torch.float32)


def test_two_checkpoints_in_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in (PICKLE, "pytorch_model-00001-of-00001.bin"):
        torch.save({"a": torch.ones(2)}, tmp_path / "model" / name)

    with pytest.raises(UnusableModel, match=r"pytorch_model\.bin: '?a'?: another .* keep one checkpoint"):
        convert(tmp_path / "model", tmp_path / "out")


class RunsCode:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def tar_of_2017(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            content = pickle.dumps({})
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


CONTENTS: dict[str, Callable[[Path], object]] = {
    "code": lambda path: torch.save({"a": RunsCode(path.parent / "ran")}, path),
    "code in the old format": lambda path: torch.save(
        {"a": RunsCode(path.parent / "ran")}, path, _use_new_zipfile_serialization=False
    ),
    "a bare pickle with code": lambda path: path.write_bytes(pickle.dumps(RunsCode(path.parent / "ran"))),
    "a module": lambda path: torch.save(torch.nn.Linear(2, 2), path),
    "a list": lambda path: torch.save([torch.ones(2)], path),
    "a number": lambda path: torch.save({"a": 1}, path),
    "numbers as names": lambda path: torch.save({1: torch.ones(2)}, path),
    "a sparse tensor": lambda path: torch.save({"a": torch.eye(2).to_sparse()}, path),
    "a tensor larger than its file": lambda path: torch.save({"a": torch.ones(1).expand(10**12)}, path),
    "a tar file": tar_of_2017,
    "garbage": lambda path: path.write_bytes(b"nonsense" * 99),
    "nothing": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_other_content_is_refused_in_one_line_and_not_executed(tmp_path: Path, content: str) -> None:
    CONTENTS[content](tmp_path / PICKLE)

    with pytest.raises(UnusableModel, match=r"pytorch_model\.bin: .*expected") as refusal:
        read_pickle(tmp_path / PICKLE)

    assert "\n" not in str(refusal.value)
    assert "weights_only" not in str(refusal.value)
    assert not (tmp_path / "ran").exists()


def test_the_code_of_these_tests_would_be_executed_without_the_restriction(tmp_path: Path) -> None:
    CONTENTS["code"](tmp_path / PICKLE)

    torch.load(tmp_path / PICKLE, weights_only=False)

    assert (tmp_path / "ran").exists()


def test_a_folder_with_safetensors_is_not_converted(backbone: Path) -> None:
    assert pickled_folders(backbone) == []
    torch.save({}, backbone / PICKLE)
    assert pickled_folders(backbone) == []
    (backbone / WEIGHTS).unlink()
    assert pickled_folders(backbone) == [backbone]
