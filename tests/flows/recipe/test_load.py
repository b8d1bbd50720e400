"""Every shipped recipe loads, and an error in one is one line."""

from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from flows.recipe.shipped import find_recipe, recipe_name, shipped_recipes
from storage.errors import UserError
from storage.store.sources import weights
from tasks.pretraining.pretrain import check

SEISMIC = "{view: lexical, index: {engine: seismic}}"


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_by_name_stem_and_path(name: str) -> None:
    recipe, path = load_recipe(name)

    assert load_recipe(str(path))[0] == recipe
    assert recipe_name(path) == name
    stems = [other.rpartition("/")[2] for other in shipped_recipes()]
    if "/" not in name or stems.count(path.stem) == 1:
        assert load_recipe(path.stem)[0] == recipe


def written(tmp_path: Path, old: str, new: str) -> str:
    """The quickstart with a piece of its text replaced."""
    text = find_recipe("quickstart").read_text()
    assert old in text
    (tmp_path / "changed.yaml").write_text(text.replace(old, new, 1))
    return str(tmp_path / "changed.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mask_rate:", "mask_rat:", r"objective\.mask_rat: unknown key; did you mean mask_rate\?"),
        ("k1: 0.9", "k11: 0.9", r"bm25\.k11: unknown key; did you mean k1\?"),
        ("steps: 60\n", "steps: many\n", r"pretrain\.steps: .*integer.*found 'many'"),
        ("mine_with: bm25", "mine_with: bm52", "retriever_1 mines with 'bm52', which is none of bm25"),
        ("paper: co_condenser", "paper: condensor", "pretrain.paper: expected one of .*co_condenser"),
        ("seed: 42", "sed: 42", r"seed"),
        ("fraction: 0.3", "fraction: 0.3\n  fraction: 0.4", "line 16: not valid YAML: the key 'fraction' is a dup"),
        ("top_p: 0.95", "top_p: [", "not valid YAML"),
        ("headline: {run: retriever_2", "headline: {run: retriever_3", "'retriever_3' is no run of this recipe"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, old, new)

    with pytest.raises(UserError, match=message) as error:
        load_recipe(path)
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_a_number_that_yaml_reads_as_text_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"learning_rate.*write 1\.0e-4"):
        load_recipe(written(tmp_path, "learning_rate: 5.0e-4", "learning_rate: 1e-4"))


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean quickstart.*`pretrieve recipes`"):
        load_recipe("quikstart")
    with pytest.raises(UserError, match="no such recipe file"):
        load_recipe("missing/quickstart.yaml")


def test_set_changes_values_in_sections_and_rounds() -> None:
    changes = ["bm25.k1=1.5", "rounds.1.train.steps=7", "execution.threads=1", "dataset.path=x y"]
    recipe, _ = load_recipe("quickstart", changes)

    assert recipe.bm25.k1 == 1.5
    assert [round_.train.steps for round_ in recipe.rounds] == [10, 7, 10]  # though the file gives them by one alias
    assert recipe.execution.threads == 1
    assert recipe.dataset.path == "x y"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bm25.k1", "expected section.key=value"),
        ("bm26.k1=1", "no section 'bm26'; did you mean bm25"),
        ("bm25.k2=1", r"bm25\.k2: unknown key; did you mean k1"),
        ("rounds.9.name=x", "no section '9'"),
        ("bm25.k1={", "is not a YAML value"),
        ("bm25.k1=high", r"bm25\.k1: .*found 'high'"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("quickstart", [change])


ONLY_RETRIEVERS = [
    "evaluate.comparisons=[]", "claims=null", "headline={run: retriever_2, baseline: retriever_1, metric: MRR@10}",
]  # fmt: skip


@pytest.mark.parametrize("changes", [
    ["fusions.0.name=retriever_1"],
    ["fusions.0.name=bm25"],
    ["rounds.2.name=retriever_1_dense", "rounds.0.rows=[dense]", "fusions=[]"],
])  # fmt: skip
def test_two_rankings_of_one_name_are_refused(changes: list[str]) -> None:
    with pytest.raises(UserError, match=r"two rankings are called '(retriever_1|bm25|retriever_1_dense)'"):
        load_recipe("quickstart", [*ONLY_RETRIEVERS, *changes])


def test_the_recipes_seed_is_every_sections_unless_it_has_its_own() -> None:
    recipe, _ = load_recipe("small/cot_mae", ["seed=7", "pretrain.seed=9"])

    assert recipe.backbone.seed == 7
    assert recipe.rounds[0].mine.seed == 7
    assert recipe.rounds[0].train.seed == 7
    assert recipe.queries.generate.seed == 7
    assert recipe.pretrain.seed == 9


def test_values_the_paper_states_have_no_default(tmp_path: Path) -> None:
    for key in ("mask_rate", "head_from", "top_p", "temperature", "max_tokens"):
        text = "\n".join(line for line in find_recipe("quickstart").read_text().splitlines() if f"{key}:" not in line)
        (tmp_path / "short.yaml").write_text(text)
        with pytest.raises(UserError, match=f"{key}: this key is missing"):
            load_recipe(str(tmp_path / "short.yaml"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("small/dup_mae", "pretrain.objective.bow_weight=null", "expected a number above 0 with ot_decoding"),
        ("small/cot_mae", "pretrain.objective.window=3", "decoder ae: expected a .*, and null for window"),
        ("quickstart", "contexts.pseudo_queries=9", "at most the 5 that are generated, found 9"),
        ("quickstart", "queries.for=[retrieve]", "expected `pretrain` in queries.for"),
        ("small/retro_mae", "contexts={pseudo_queries: 5, passages: [], alone: null}", "reads texts; expected null"),
        ("small/ict", "contexts={pseudo_queries: 0, passages: [nearby], alone: itself}", "reads sentences"),
        ("small/co_condenser", "contexts=null", "reads pairs; expected contexts"),
        ("small/co_condenser", "contexts.pseudo_queries=0", "expected pseudo_queries above 0, or some passages"),
        ("small/cot_mae", "pretrain.mix=null", r"pretrain\.mix: expected step or example"),
        ("quickstart", "pretrain.mix=step", r"pretrain\.mix: .* else null"),
        ("small/retro_mae", "dataset.train_split=null", "expected a generator"),
        ("small/sim_cse", "pretrain.objective.dropout=0.0", "without it both encodings would be equal"),
        ("small/cpdae", "pretrain.objective.contrast=none", "contrast none: expected null"),
        ("small/prop", "pretrain.epochs=2", "give either steps or epochs"),
        ("small/came", "rounds.0.train.contrasts=[sum]", r"or \[\] and a competition"),
        ("small/came", "rounds.0.train.competition=null", "expected some of sum and the views"),
        ("small/came", "rounds.0.train.competition.scope=epoch", "'batch' or 'group', found 'epoch'"),
        ("small/came", "rounds.1.mine_views=[dense, global]", "found 'global'"),
        ("small/came", "fusions.4.learn=null", "expected settings where fuse.kind is linear"),
        ("small/came", "fusions.0.members=[retriever_1/late, retriever_3]", "'retriever_3' is no round of this recipe"),
        ("small/cot_mote", "rounds.0.train.contrasts=[late]", "expected sum or views of dense, lexical, found late"),
        ("small/cot_mote", "rounds.0.rows=[late]", r"retriever_1\.rows: expected views of dense, lexical, found late"),
        ("small/cpdae", "rounds.0.train.epochs=5", "give either steps or epochs"),
        ("small/retrievers", "approximate.0.view=late", "expected a round with late among its rows"),
        ("small/retrievers", "rounds.3.train.retriever.late.query_masks=16", r"no passage has a \[MASK\] to match"),
        ("small/retrievers", "rounds.0.train.flops={queries: 0.1, passages: 0.1, ramp: 0.0}", "with a lexical view"),
        ("small/dup_mae", "teacher=null", "'teacher' is no run of this recipe"),
        ("small/came", "rounds.1.mine.miner=top", "the miner union reads two views or more, and no other does"),
        ("small/came", "rounds.1.mine_views=[late]", "found late"),
        ("small/came", "rounds.0.fuse.kind=linear", "a linear fusion is learned; give it among `fusions`"),
        ("small/retrievers", "rounds.0.fuse={kind: sum, depth: 10}", "of several views, found dense"),
        ("small/retrievers", "approximate.0.index={engine: seismic}", "dpr_hnsw: seismic searches lexical, not dense"),
        ("small/retrievers", "rounds.0.train=null", "give train, and its negatives by mine_with and mine or by given"),
        ("small/retrievers", "rounds.0.mine=null", "give mine_with and mine, or set both to null"),
        ("small/retrievers", "rounds.0.given={file: x, systems: null, per_system: 5, margin: 3, per_query: 9}",
         "give train, and its negatives by mine_with and mine or by given"),
        ("small/retrievers", "pretrain=null", "dpr starts from a pre-training, but pretrain is null"),
        ("small/dup_mae", "teacher.reranks=teacher", r"teacher\.reranks: expected one of bm25, retriever_1"),
        ("small/dup_mae", "teacher.mine_with=retriever_3", "retriever_3 needs the teacher before 'retriever_3'"),
        ("small/cpdae", "rounds.0.queries={queries: 20, samples: [-1]}", "greater than or equal to 0"),
        ("small/came", "evaluate.metrics=[MRR@10, foo@3]", "match pattern"),
        ("small/retrievers", "approximate.2.round=coil", "exact matches are searched exactly"),
        ("small/retrievers", "rounds.1.train.retriever.lexical.activation=none", "which activation none does not give"),
        ("small/came", "rounds.1.mine_approximate=[{view: dense, index: {engine: seismic}}]", "not dense"),
        ("small/came", f"rounds.1.mine_approximate=[{SEISMIC}, {SEISMIC}]", "expected one index for a view"),
        ("small/came", f"rounds.0.mine_approximate=[{SEISMIC}]", "expected views of no retriever, found lexical"),
        ("small/cot_mae", f"rounds.2.mine_approximate=[{SEISMIC}]", "expected views of dense, found lexical"),
        ("small/dup_mae", f"rounds.2.mine_approximate=[{SEISMIC}]", "does not mine from a ranking by lexical"),
        ("small/dup_mae", "teacher.train=null", "give the weights of a trained cross-encoder"),
        ("small/dup_mae", "teacher.mine_with=nobody", "expected bm25 or a round, found 'nobody'"),
        ("small/cot_mae", "pretrain=null", "without pretrain nothing reads them; expected null"),
        ("small/cpdae", "rounds.0.queries={queries: 20, samples: [0, 1], more: 1}", r"\.queries\.more: unknown"),
        ("small/cpdae", "rounds.1.mine.depthh=3", r"rounds\.1\.mine\.depthh: unknown key; did you mean depth\?"),
        ("small/cpdae", "approximate=[{index: {engine: faiss, probe: 3}}]", r"\.index\.probe: unknown key"),
        ("small/cot_mae", "queries.filter.cut.relevance.treshold=3", r"cut\.relevance\.treshold: unknown"),
    ],
)  # fmt: skip
def test_what_a_paper_cannot_do_is_refused_when_the_recipe_is_loaded(name: str, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(name, [change])


def test_a_probe_without_any_queries_is_refused() -> None:
    changes = ["dataset.train_split=null", "contexts.pseudo_queries=0", "pretrain.mix=null"]

    with pytest.raises(UserError, match=r"pretrain\.probe: without a train split .* expected null, or contexts"):
        load_recipe("small/cot_mae", changes)

    assert load_recipe("small/cot_mae", [*changes, "pretrain.probe=null"])


def test_a_random_backbone_has_no_heads_whatever_the_working_folder_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, _ = load_recipe("small/co_condenser", ["pretrain.heads=continued", "backbone.start=random"])
    (tmp_path / "random").mkdir()
    (tmp_path / "random" / "heads.safetensors").write_bytes(b"")
    folder = weights(recipe.backbone.weights).path.resolve()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=r"pretrain\.heads: .* backbone\.start=random; expected fresh"):
        check(recipe.pretrain, recipe.backbone, folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("small/retro_mae", "backbone.towers=separate", r"pre-trains one encoder; expected siamese, not separate"),
        ("small/condenser", "pretrain.objective.head_from=3", r"head_from: expected a layer before the last of .* 3"),
        ("small/masked_lm", "pretrain.objective.max_tokens=900", "max_tokens: expected at most 512, found 900"),
        ("small/co_condenser", "pretrain.heads=continued", r"the backbone has no heads\.safetensors to continue"),
    ],
)  # fmt: skip
def test_what_a_backbone_cannot_do_is_refused_before_anything_is_built(name: str, change: str, message: str) -> None:
    recipe, _ = load_recipe(name, [change])
    folder = weights(recipe.backbone.weights).path

    with pytest.raises(UserError, match=message):
        check(recipe.pretrain, recipe.backbone, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pretrain.fit.learning_rate=.inf", r"pretrain\.fit\.learning_rate: .*finite number, found inf"),
        ("pretrain.fit.weight_decay=.nan", r"pretrain\.fit\.weight_decay: .*finite number, found nan"),
        ("pretrain.fit.max_gradient_norm=.inf", r"pretrain\.fit\.max_gradient_norm: .*finite number, found inf"),
        ("pretrain.fit.max_gradient_norm=0", "greater than 0, found 0"),
        ("pretrain.objective.mask_rate=.nan", r"pretrain\.objective\.mask_rate: .*finite number, found nan"),
        ("pretrain.objective.temperature=0", "temperature and masked_lm_weight: expected numbers above 0"),
        ("rounds.0.train.temperature=.inf", r"train\.temperature: .*finite number, found inf"),
        ("rounds.0.train.retriever.dense.weight=.inf", r"retriever\.dense\.weight: .*finite number, found inf"),
        ("bm25.k1=.inf", r"bm25\.k1: .*finite number, found inf"),
        ("bm25.k1=1.0e+300", r"bm25\.k1: .*less than or equal to 1000"),
        ("backbone.layers=[-1]", r"backbone\.layers\.0: .*greater than or equal to 0, found -1"),
        ("backbone.layers=[1, 1]", r"backbone\.layers: expected each layer once"),
        ("backbone.dropout=1.0", r"backbone\.dropout: .*less than 1"),
        ("seed=-1", r"greater than or equal to 0, found -1"),
        ("execution.threads=0", r"execution\.threads: .*greater than 0"),
    ],
)  # fmt: skip
def test_a_number_that_means_nothing_is_refused_when_the_recipe_is_loaded(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        load_recipe("quickstart", [change])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("start", ["weights", "random"])
def test_layers_that_the_backbone_lacks_are_refused_before_anything_is_built(start: str) -> None:
    recipe, _ = load_recipe("quickstart", ["backbone.layers=[0, 99]", f"backbone.start={start}"])

    with pytest.raises(UserError, match=r"backbone: layers: expected some of 0 to 5, found \[0, 99\]"):
        check(recipe.pretrain, recipe.backbone, weights(recipe.backbone.weights).path)


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name.startswith("small/")])
def test_every_small_recipe_suits_its_backbone(name: str) -> None:
    recipe, _ = load_recipe(name)

    if recipe.pretrain is not None:
        check(recipe.pretrain, recipe.backbone, weights(recipe.backbone.weights).path)


@pytest.mark.parametrize("name", ["...yaml", "..yaml", ".hidden.yaml"])
def test_a_recipe_whose_name_is_no_name_of_a_report_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a recipe's file cannot begin with a dot"):
        recipe_name(tmp_path / name)


def test_counterparts_of_an_analysis_are_runs_of_the_recipe() -> None:
    recipe, _ = load_recipe("came_ablations")
    assert recipe.analyses[0].counterparts == ["came", "lexical_alone", "late_alone", "dense_alone"]
    assert "counterparts" not in load_recipe("came")[0].analyses[0].model_dump()  # so that keys are as before
    with pytest.raises(UserError, match=r"counterparts: expected some of bm25, .*found 'splade'"):
        load_recipe("came_ablations", ["analyses.0.counterparts=[splade]"])
