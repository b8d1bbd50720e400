"""The forms of the Prefect UI: the parameters of the deployed flows, and the decorator that offers them.

Prefect shows a function's first lines next to its form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, get_type_hints

from prefect import Flow, flow
from pydantic import Field
from pydantic.fields import FieldInfo

from flows.prefect_server.worker_death import end_with_worker
from flows.recipe.suite_schema import shipped_suites
from flows.recipe_list import recipe_groups
from flows.run_names import name_of_current_run

P = ParamSpec("P")

CHANGE = r"^[A-Za-z0-9_.]+=.*$"


COMPUTED: Any = Annotated  # of types that type checkers need not follow


def _one_of(title: str, members: dict[str, str]) -> Any:
    """Return the type of a choice in a form, with a description of each of its members."""
    words = "\n".join(f"- {name}: {description}" for name, description in members.items())
    return COMPUTED[str, Field(title=title, description=words, json_schema_extra={"enum": list(members)})]


def _any_of(options: Sequence[Any], description: str) -> Any:
    """Return the type of a field that is one of several options, such as groups of choices, or text."""
    return COMPUTED[reduce(or_, options), Field(description=description)]


YamlFile = Annotated[
    str, Field(title="file", description="The path of a YAML file that every worker can read.", pattern=r"\.ya?ml$")
]
if TYPE_CHECKING:
    RecipeName = str
    SuiteName = str
else:
    RecipeName = _any_of(
        [*(_one_of(re.split(r"[:,]| \(", group)[0], members) for group, members in recipe_groups().items()), YamlFile],
        "What to run: a shipped recipe, in groups by paper, or a file of your own.",
    )
    SuiteName = _any_of(
        [_one_of("shipped", dict.fromkeys(shipped_suites(), "a suite of configs/suites/")), YamlFile],
        "On which collections: a suite of configs/suites/, or a file of your own.",
    )
Changes = Annotated[
    list[Annotated[str, Field(pattern=CHANGE)]],
    Field(description="Values to change, one a line, such as rounds.1.train.epochs=2.", max_length=100),
]
ResampledQueries = Annotated[
    str,
    Field(
        description="Resample these queries: all, a bucket such as bucket:2a, or a file of document ids; empty: none."
    ),
]
UntilStage = Annotated[
    str, Field(description="Build only what this stage or round depends on, such as split_corpus; empty: everything.")
]
RebuiltStage = Annotated[
    str, Field(description="Build this stage or round and what depends on it again; empty: only what is missing.")
]
Fast = Annotated[bool, Field(description="A smoke test: few steps on a slice of the collection; changes win over it.")]
Recipes = Annotated[
    list[RecipeName], Field(description="The recipes to run, each with every seed.", min_length=1, max_length=50)
]
Seeds = Annotated[
    list[Annotated[int, Field(ge=0)]], Field(description="The seeds, one a line.", min_length=1, max_length=50)
]
Varied = Annotated[
    list[Annotated[str, Field(pattern=CHANGE)]],
    Field(description="Settings to vary, one a line with their values: pretrain.steps=20,40.", max_length=20),
]
MatrixName = Annotated[str, Field(description="The matrix's name, as its page has it; empty: made from the recipes.")]
Models = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(description="bm25, keys, folders or hub names, one a line; NAME=MODEL names its row.", min_length=1),
]
CollectionNames = Annotated[
    list[str], Field(description="Collections of the suite, one a line; all, where none is named.")
]
SkipMissing = Annotated[bool, Field(description="Leave out collections that are not here, which is an error else.")]
StageName = Annotated[
    str, Field(description="The stage's key or the beginning of it, as `pretrieve plan` lists it.", min_length=4)
]


def flow_with_form(*, named: bool = True) -> Callable[[Callable[P, None]], Flow[P, None]]:
    """Return a decorator that makes a function a flow of its name, whose form has the descriptions of the annotations.

    A run is `named` by its parameters, unless the operator has named it. Prefect reads descriptions only from `Args` in
    a docstring, so these are written there.
    """

    def as_flow(function: Callable[P, None]) -> Flow[P, None]:
        words, fields = function.__doc__ or "", get_type_hints(function, include_extras=True)
        arguments = [f"    {name}: {_description(kind)}" for name, kind in fields.items() if name != "return"]
        function.__doc__ = "\n".join([words.rstrip(), "", "Args:", *arguments])
        name = function.__name__
        run_name = name_of_current_run if named else None
        return flow(
            name=name, description=words, flow_run_name=run_name, persist_result=False, on_running=[end_with_worker]
        )(function)

    return as_flow


def _description(annotation: Any) -> str:
    return next(field.description or "" for field in annotation.__metadata__ if isinstance(field, FieldInfo))
