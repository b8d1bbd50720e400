"""Refuses a run whose recipe, changes or stage names are wrong when it is requested, before a worker starts.

The UI shows the reason in the form. A file that this machine does not have is left to the worker.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.prefect_server.locked_database import body_messages, replayed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

CREATION = re.compile(r"/api/deployments/[0-9a-f-]{36}/create_flow_run")
PARAMETERS = {"recipe", "changes", "until", "rebuild", "replace", "stage", "fast", "recipes", "seeds", "vary", "name"}
EVALUATION = {"models", "suite", "only", "skip_missing"}
MATRIX: dict[str, list[Any]] = {"recipes": ["quickstart"], "seeds": [1, 2, 3], "changes": [], "vary": []}
KEY_PREFIX = re.compile("[0-9a-f]+")
MAX_BYTES = 1 << 20  # Prefect refuses parameters of more than half of this


class RunCheck:
    """An ASGI application behind a check of the runs that are requested with the password `secret`."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app, self._authorization = app, b"Basic " + base64.b64encode(secret.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or answer one for an impossible run with 422 and the reason."""
        if not self._concerns(scope):
            await self._app(scope, receive, send)
            return
        messages = await body_messages(receive, MAX_BYTES)
        body = b"".join(message.get("body", b"") for message in messages)
        if problem := await asyncio.to_thread(problem_of_request, body):
            content = json.dumps({"detail": problem}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 422, "headers": headers})
            await send({"type": "http.response.body", "body": content})
            return
        await self._app(scope, replayed(messages, receive), send)

    def _concerns(self, scope: Scope) -> bool:
        """Return whether the request creates a run and has the password; Prefect refuses others."""
        if scope["type"] != "http" or scope["method"] != "POST" or not CREATION.fullmatch(scope["path"]):
            return False
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._authorization)


def problem_of_request(body: bytes) -> str | None:
    """Return why a requested run cannot work; None where nothing is wrong, or the request is of another kind."""
    try:
        parameters = json.loads(body)["parameters"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(parameters, dict) or not parameters.keys() & (PARAMETERS | EVALUATION):
        return None
    if unknown := sorted(parameters.keys() - PARAMETERS - EVALUATION):
        return (
            f"parameters: {unknown[0]} is unknown; expected {', '.join(sorted(PARAMETERS))}, or for an evaluation "
            f"{', '.join(sorted(EVALUATION))}; a recipe's setting is one of the changes, as in "
            '{"changes": ["seed=3"]}'
        )
    if "models" in parameters and parameters.keys() <= EVALUATION:
        return problem_of_evaluation(parameters)
    if not parameters.keys() <= PARAMETERS:
        return None
    if "seeds" in parameters or "recipes" in parameters:
        return problem_of_matrix(parameters)
    recipe, changes = parameters.get("recipe", "quickstart"), parameters.get("changes") or []
    if not isinstance(recipe, str) or not isinstance(changes, list) or not all(isinstance(c, str) for c in changes):
        return None  # Prefect compares types with the form's schema
    if is_elsewhere(recipe):
        return None
    return problem_of_run(recipe, changes, parameters)


def is_elsewhere(name: str) -> bool:
    """Return whether a name is that of a YAML file that this machine lacks; a worker may have it."""
    return Path(name).suffix in (".yaml", ".yml") and not Path(name).is_file()


def problem_of_matrix(parameters: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a matrix of runs; else None. Of each variant the run with the first seed is planned."""
    from flows.recipe.grid import grid_of
    from storage.errors import UserError

    lists = [parameters.get(name, default) for name, default in MATRIX.items()]
    if not all(isinstance(value, list) for value in lists) or any(
        not isinstance(text, str) for value in (lists[0], *lists[2:]) for text in value
    ):
        return None  # Prefect compares types with the form's schema
    recipes, seeds, changes, vary = lists
    if any(is_elsewhere(recipe) for recipe in recipes):
        return None
    try:
        grid = grid_of(recipes, seeds, changes, vary, parameters.get("name") or None)
    except UserError as error:
        return str(error)
    problems = (problem_of_run(cell.variant.recipe, cell.changes, {}) for cell in grid.cells[: len(grid.variants)])
    return next((problem for problem in problems if problem), None)


def problem_of_evaluation(parameters: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the suite of an evaluation or with the names of its collections; else None."""
    from flows.recipe.suite_schema import load_suite
    from storage.errors import UserError

    suite, only = parameters.get("suite", "small"), parameters.get("only") or []
    if not isinstance(suite, str) or not isinstance(only, list) or not all(isinstance(name, str) for name in only):
        return None  # Prefect compares types with the form's schema
    if is_elsewhere(suite):
        return None
    try:
        load_suite(suite, [])[0].select(only)
    except UserError as error:
        return str(error)
    return None


def problem_of_run(recipe: str, changes: list[str], parameters: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a recipe, its changes, or with `until`, `rebuild` and `replace`; else None.

    A recipe with a round that may start from a key is only loaded: the worker's store has the artifact.
    """
    from flows.plan.plan import named_jobs, planned
    from flows.recipe.load import load_recipe
    from flows.recipe.replacement import check_replacement
    from flows.recipe.shipped import recipe_name
    from flows.smoke_test import FAST
    from storage.errors import UserError
    from storage.store import sources
    from storage.store.store import Store

    try:
        settings, path = load_recipe(recipe, [FAST, *changes] if parameters.get("fast") is True else changes)
        if any(KEY_PREFIX.fullmatch(round_.start) for round_ in settings.rounds):
            return None
        with tempfile.TemporaryDirectory() as empty, sources.assuming_present():
            if settings.dataset.path is None:
                sources.locate(None, settings.dataset.reader)  # raises: no file will ever be there
            plan = planned(settings, recipe_name(path), Store(Path(empty)))
        for name in ("until", "rebuild"):
            if goal := parameters.get(name):
                named_jobs(plan.jobs, str(goal))
        if "replace" in parameters:
            check_replacement(settings, str(parameters["replace"] or ""))
    except UserError as error:
        return str(error)
    return None


def warm_up() -> None:
    """Import what a check needs, so that the first one does not wait for it."""
    problem_of_run("quickstart", [], {})
