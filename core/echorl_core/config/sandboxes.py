"""What agents and graders of a run's environments run in."""

from typing import Literal

from echorl_core.config.base import RoleConfig


class SandboxesConfig(RoleConfig):
    """Who makes them, and the most that one of them, and all of them, may be."""

    provider: Literal["process", "pod"] = "process"
    broker_url: str | None = None
    """Base URL of what the broker has of this run; null: pods cannot be had."""
    cpu: float
    memory_bytes: int
    disk_bytes: int
    processes: int
    concurrency: int
    """Episodes that have sandboxes at the same time."""
    ttl_s: float
