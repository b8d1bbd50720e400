"""The forms of the Prefect UI: the parameters of the deployed flows, and the decorator that offers them.

Prefect shows a function's first lines next to its form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, get_type_hints

from prefect import Flow, flow
from pydantic import Field
from pydantic.fields import FieldInfo

from flows.chain.suites import shipped_suites
from flows.recipe.shipped import shipped_recipes
from flows.run_names import name_of_current_run

P = ParamSpec("P")

CHANGE = r"^[A-Za-z0-9_.]+=.*$"

Shipped = Annotated[
    str,
    Field(title="shipped", description="A recipe of configs/.", json_schema_extra={"enum": list(shipped_recipes())}),
]
Own = Annotated[
    str, Field(title="file", description="The path of a YAML file that every worker can read.", pattern=r"\.ya?ml$")
]
RecipeName = Annotated[Shipped | Own, Field(description="What to run: a recipe of configs/, or a file of your own.")]
Changes = Annotated[
    list[Annotated[str, Field(pattern=CHANGE)]],
    Field(description="Values to change, one a line, such as rounds.1.train.epochs=2.", max_length=100),
]
Nothing = Annotated[None, Field(title="nothing")]
Some = Annotated[str, Field(title="some", min_length=1)]
Replaced = Annotated[
    Nothing | Some,
    Field(description="Write others for: all, a bucket such as bucket:2a, or a file of document ids, one a line."),
]
Everything = Annotated[None, Field(title="everything")]
Part = Annotated[str, Field(title="stage or round", min_length=1)]
Goal = Annotated[
    Everything | Part, Field(description="Only what a stage or a round needs, such as split_corpus; or everything.")
]
Models = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(description="bm25, keys, folders or hub names, one a line; NAME=MODEL names its row.", min_length=1),
]
SuiteName = Annotated[
    Annotated[str, Field(title="shipped", description="A suite.", json_schema_extra={"enum": list(shipped_suites())})]
    | Own,
    Field(description="On which collections: a suite of configs/suites/, or a file of your own."),
]
Only = Annotated[list[str], Field(description="Collections of the suite, one a line; all, where none is named.")]
Skipping = Annotated[bool, Field(description="Leave out collections that are not here, which is an error else.")]
StageName = Annotated[
    str, Field(description="The stage's key or the beginning of it, as `pretrieve plan` lists it.", min_length=4)
]


def offered(*, named: bool = True) -> Callable[[Callable[P, None]], Flow[P, None]]:
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
        return flow(name=name, description=words, flow_run_name=run_name, persist_result=False)(function)

    return as_flow


def _description(annotation: Any) -> str:
    return next(field.description or "" for field in annotation.__metadata__ if isinstance(field, FieldInfo))
