"""Secrets in messages: those of URLs are masked, in linear time, and nothing else changes."""

from __future__ import annotations

import time

import pytest

from storage.errors import UserError, masked, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:hunter2@host:4200/api does not answer", "http://***@host:4200/api does not answer"),
        ("redis://:hunter2@host:6379/2", "redis://***@host:6379/2"),
        ("at postgresql+asyncpg://u:hunt@er2/x@db/prefect, or", "at postgresql+asyncpg://***@db/prefect, or"),
        ("'http://hunter2@a' and \"https://b:hunter2@c\"", "'http://***@a' and \"https://***@c\""),
        ("http://host/api, mail a@b", "http://host/api, mail a@b"),
        ("redis://:PASSWORD@HOST:PORT/DB", "redis://:PASSWORD@HOST:PORT/DB"),
        ("tcp://***@host:1", "tcp://***@host:1"),
        ("redis://:xy@zzy@h:6379/0", "redis://***@h:6379/0"),
        ("postgresql://h/db?user=u&password=xyzzy&ssl=require", "postgresql://h/db?user=u&password=***&ssl=require"),
        ("https://h/hook?access_token=xyzzy", "https://h/hook?access_token=***"),
        ("postgresql://u:xyzzy@h/db?sslpassword=xyzzy", "postgresql://***@h/db?sslpassword=***"),
        ("postgresql://h/db?password=p@xyzzy", "postgresql://***"),
        ("postgresql://u:a?password=b@h/db", "postgresql://***"),
        ("expected postgresql://user:PASSWORD@host/name", "expected postgresql://user:PASSWORD@host/name"),
        ("a password=b and https://h/?page=2", "a password=b and https://h/?page=2"),
    ],
)
def test_secrets_of_addresses_are_masked(text: str, shown: str) -> None:
    assert masked(text) == one_line(text) == str(UserError(text)) == shown


@pytest.mark.parametrize("part", ["://", "://a", ":/a", "a@"])
def test_a_long_text_is_masked_in_time(part: str) -> None:
    text, began = part * 50_000, time.process_time()

    assert masked(f"http://me:hunter2@host {text}") == f"http://***@host {text}"

    assert time.process_time() - began < 1
