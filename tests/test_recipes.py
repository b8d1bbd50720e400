"""Every shipped recipe loads, and what is wrong with one is told in a line."""

from pathlib import Path

import pytest

from flows.read_recipe import find_recipe, load_recipe, recipe_name, shipped_recipes
from storage.errors import UserError


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
    ("old", "new", "said"),
    [
        ("text_mask_rate:", "text_mask_rat:", r"objective\.text_mask_rat: unknown key; did you mean text_mask_rate\?"),
        ("k1: 0.9", "k11: 0.9", r"bm25\.k11: unknown key; did you mean k1\?"),
        ("steps: 40  ", "steps: many  ", r"pretrain\.steps: .*integer.*found 'many'"),
        ("mine_with: bm25", "mine_with: bm52", "retriever_1 mines with 'bm52', which is none of bm25"),
        ("paper: cot_mae", "paper: cot_may", "pretrain.paper: expected one of .*cot_mae"),
        ("seed: 42", "sed: 42", r"seed"),
        ("fraction: 0.3", "fraction: 0.3\n  fraction: 0.4", "line 16: not valid YAML: the key 'fraction' stands twice"),
        ("top_p: 0.95", "top_p: [", "not valid YAML"),
        ("headline: {run: retriever_2", "headline: {run: retriever_3", "'retriever_3' is no run of this recipe"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = written(tmp_path, old, new)

    with pytest.raises(UserError, match=said) as error:
        load_recipe(path)
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_a_number_that_yaml_reads_as_text_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"learning_rate.*write 1\.0e-4"):
        load_recipe(written(tmp_path, "learning_rate: 5.0e-4", "learning_rate: 1e-4"))


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean quickstart"):
        load_recipe("quikstart")
    with pytest.raises(UserError, match="no such recipe file"):
        load_recipe("missing/quickstart.yaml")


def test_set_changes_values_in_sections_and_rounds() -> None:
    changes = ["bm25.k1=1.5", "rounds.1.train.epochs=7", "execution.threads=1", "dataset.path=x y"]
    recipe, _ = load_recipe("quickstart", changes)

    assert recipe.bm25.k1 == 1.5
    assert [each.train.epochs for each in recipe.rounds] == [1, 7, 1, 1]  # though the file gives them by one alias
    assert recipe.execution.threads == 1
    assert recipe.dataset.path == "x y"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("bm25.k1", "expected section.key=value"),
        ("bm26.k1=1", "no section 'bm26'; did you mean bm25"),
        ("bm25.k2=1", r"bm25\.k2: unknown key; did you mean k1"),
        ("rounds.9.name=x", "no section '9'"),
        ("bm25.k1={", "is not a YAML value"),
        ("bm25.k1=high", r"bm25\.k1: .*found 'high'"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(change: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_recipe("quickstart", [change])


def test_the_recipes_seed_is_every_sections_unless_it_has_its_own() -> None:
    recipe, _ = load_recipe("quickstart", ["seed=7", "pretrain.seed=9"])

    assert recipe.backbone.seed == 7
    assert recipe.rounds[0].mine.seed == 7
    assert recipe.rounds[0].train.seed == 7
    assert recipe.queries.generate.seed == 7
    assert recipe.pretrain.seed == 9


def test_values_the_paper_states_have_no_default(tmp_path: Path) -> None:
    for key in ("text_mask_rate", "window", "top_p", "temperature", "max_tokens"):
        text = "\n".join(line for line in find_recipe("quickstart").read_text().splitlines() if f"{key}:" not in line)
        (tmp_path / "short.yaml").write_text(text)
        with pytest.raises(UserError, match=f"{key}: this key is missing"):
            load_recipe(str(tmp_path / "short.yaml"))
