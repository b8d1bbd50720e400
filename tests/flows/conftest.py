"""Fixtures for the tests of commands that fetch."""

from tests.flows.fetch.publisher import publisher, server

__all__ = ["publisher", "server"]
