"""Processes that run environment code, so that it can never block or end the orchestrator."""
