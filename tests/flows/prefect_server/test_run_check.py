"""Runs that cannot work are refused when they are requested, with the reason; all other requests pass unchanged."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.prefect_server.run_check import MAX_BYTES, RunCheck, problem_of_run, warm_up

SECRET = "user:password"
CREATE = f"/api/deployments/{uuid.uuid4()}/create_flow_run"


def send(
    content: bytes, path: str = CREATE, secret: str = SECRET, method: str = "POST"
) -> tuple[int, str, list[bytes]]:
    """Send a request; its status, its text, and the bodies that arrived behind the check."""
    arrived: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        arrived.append(body)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"created"})

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app=RunCheck(app, SECRET))
        auth = httpx.BasicAuth(*secret.split(":"))
        async with httpx.AsyncClient(transport=transport, base_url="http://server", auth=auth) as client:
            return await client.request(method, path, content=content)

    answer = asyncio.run(call())
    return answer.status_code, answer.text, arrived


def body(**parameters: Any) -> bytes:
    return json.dumps({"parameters": parameters}).encode()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"recipe": "quickstart", "changes": ["pretrain.stepz=12"]}, "stepz"),
        ({"recipe": "quickstart", "changes": ["pretrain.steps=many"]}, "pretrain.steps"),
        ({"recipe": "quickstart", "seed": 3}, "parameters: seed is unknown; expected changes, fast,"),
        ({"recipe": "quickstrat"}, "did you mean quickstart?"),
        ({"changes": ["backbone.layers=[99]"]}, "99"),
        ({"recipe": "quickstart", "until": "pretrian"}, "did you mean pretrain?"),
        ({"recipe": "quickstart", "rebuild": "retriever_7"}, "retriever_7"),
        ({"recipe": "quickstart", "fast": True, "changes": ["rounds.0.train.steps=0"]}, "rounds.0.train.steps"),
        ({"recipe": "small/beir"}, "dataset.path: expected the folder of a collection for the loader beir"),
        ({"recipe": "quickstart", "replace": "bucket:zz"}, "two hexadecimal digits"),
        ({"recipe": "retro_mae", "replace": ""}, "this recipe generates none"),
        ({"models": ["bm25"], "only": ["SciFcat"]}, "SciFact"),
        ({"models": ["bm25"], "suite": "smal"}, "small"),
        ({"recipes": ["quickstart"], "seeds": [1, 1]}, "1 is given twice"),
        ({"recipes": ["quickstart"], "vary": ["pretrain.steps=4,many"]}, "pretrain.steps"),
    ],
)
def test_an_impossible_run_is_refused_with_the_reason(parameters: dict[str, Any], reason: str) -> None:
    status, text, arrived = send(body(**parameters))

    assert (status, arrived) == (422, [])
    assert reason in json.loads(text)["detail"]


@pytest.mark.parametrize(
    "content",
    [
        body(recipe="quickstart", changes=["seed=7"], until="pretrain", rebuild="retriever_1"),
        body(recipe="quickstart", fast=True, changes=["seed=7"]),
        body(recipe="quickstart", replace="bucket:2a"), body(recipe="quickstart", replace="/there/ids.txt"),
        body(recipe="small/beir", changes=["dataset.path=/only/there"]), body(models=3, suite=3),
        body(models=["bm25"], suite="/only/there.yaml"), body(models=["bm25"], only=["SciFact"]),
        body(recipes=["quickstart"], seeds=[1, 2], vary=["pretrain.steps=4,8"]),
        body(recipes=["/only/there.yaml"], seeds=[1]), body(recipes=[3], seeds=[1]),
        body(recipe="/only/on/the/worker.yaml"), body(models=["bm25"], suite="small"), body(recipe=3), body(changes=3),
        body(recipe="quickstart", changes=["rounds.0.start=0123abcd"]), b"not json",
        b"[]", b"x" * (2 * MAX_BYTES),
    ],
    ids=str,
)  # fmt: skip
def test_other_runs_pass_unchanged(content: bytes) -> None:
    status, text, arrived = send(content)

    assert (status, text, arrived) == (201, "created", [content])


def test_nothing_is_read_for_requests_without_the_password_or_of_other_kinds() -> None:
    impossible = body(recipe="no-such-recipe")

    assert send(impossible, secret="user:wrong")[0] == 201
    assert send(impossible, path="/api/flow_runs/filter")[0] == 201
    assert send(impossible, method="PUT")[0] == 201


def test_a_file_of_the_users_is_checked_where_it_is_here(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("nothing: 1\n")

    assert send(body(recipe=str(recipe)))[0] == 422


def test_a_check_takes_less_than_five_seconds() -> None:
    warm_up()
    started = time.process_time()

    assert problem_of_run("came", ["seed=7"], {"until": "train"}) is None

    assert time.process_time() - started < 5
