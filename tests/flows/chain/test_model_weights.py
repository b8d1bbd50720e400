"""Models whose weights are pickled are converted once, by a stage, and are then as good as their safetensors."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flows.chain.given_models import check_models
from flows.chain.model_weights import model_weights
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store.store import Store
from tasks.pretraining.initialise import BackboneSettings, initialise
from tasks.session import Session, session
from tests.tiny import save_backbone

SETTINGS = BackboneSettings(
    weights="x", start="weights", towers="siamese", layers=None, dropout=0.1, pooling="cls", seed=1
)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A model as safetensors, and the same model pickled."""
    models = tmp_path / "model", tmp_path / "pickled"
    for folder in models:
        folder.mkdir()
        save_backbone(folder)
    weights = models[1] / "model.safetensors"
    torch.save(load_file(weights), models[1] / "pytorch_model.bin")
    weights.unlink()
    return models


def test_only_pickled_weights_are_converted_and_only_once(folders: tuple[Path, Path], store: Store) -> None:
    model, pickled = (model_weights(str(folder)) for folder in folders)
    again = model_weights(str(folders[1]))

    assert isinstance(model, Source)
    assert isinstance(pickled, Artifact)
    assert pickled == again
    assert pickled.stage == "convert_weights"
    assert [path.name for path in (store.root / "convert_weights").iterdir()] == [pickled.key]
    assert store.manifest("convert_weights", pickled.key) is not None
    one, other = (initialise(weights, settings=SETTINGS) for weights in (model, pickled))
    assert one.key != other.key  # a source is identified by its files
    hashes = [store.manifest("initialise", artifact.key) for artifact in (one, other)]
    assert len({manifest.hash for manifest in hashes if manifest}) == 1


def test_a_pickled_model_is_checked_before_anything_is_built(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with session(Session(Store(tmp_path / "empty"), planning=True)) as plan:
        initialise(model_weights(str(folders[1])), settings=SETTINGS)
        check_models(plan.jobs, plan)
        (folders[1] / "pytorch_model.bin").write_bytes(pickle.dumps(print))

        with pytest.raises(UserError, match=r"pickled/pytorch_model\.bin: expected tensors by name"):
            check_models(plan.jobs, plan)

        (folders[1] / "pytorch_model.bin").unlink()
        torch.save({"bert.other": torch.ones(1)}, folders[1] / "pytorch_model.bin")
        with pytest.raises(UserError, match=r"pickled/model\.safetensors: expected the model of config") as refusal:
            check_models(plan.jobs, plan)
    assert "/pretrieve-" not in str(refusal.value)
    assert not (tmp_path / "empty").exists()
