"""Fixtures for every test. They start nothing until a test asks for them."""

pytest_plugins = ["tests.support.services"]
