"""Environments: the built-in ones, and the loading of a user's. Their code runs in worker processes."""
