"""Fixtures of the API node, for every test below this folder."""

from tests.support.app import live_url, stack

__all__ = ["live_url", "stack"]
