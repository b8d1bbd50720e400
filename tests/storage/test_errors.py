"""Secrets in messages: what stands in a URL is masked, and nothing else changes."""

from __future__ import annotations

import pytest

from storage.errors import UserError, masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://u:xyzzy@h/db: no", "at postgresql://***@h/db: no"),
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
    assert masked(text) == shown
    assert str(UserError(text)) == shown
