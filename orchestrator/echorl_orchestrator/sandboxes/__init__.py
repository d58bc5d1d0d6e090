"""Sandboxes that agents and graders run in: one contract, and a module a provider."""
