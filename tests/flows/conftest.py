"""Fixtures for the tests of commands that fetch."""

from tests.flows.publisher import publisher, server

__all__ = ["publisher", "server"]
