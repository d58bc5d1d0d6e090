"""Engines as the orchestrator sees them: found by name, kept at the newest policy version, asked for tokens.

    discovery -> engine_monitor (one per address: identity, health) -> updater (stage, pause, apply, resume, probe)
    dispatch  -> client (token ids in, token ids and logprobs out), chat (messages in, for models that engines render)

An engine gets traffic only while it holds a version that this pool has applied or verified.
"""

from echorl_orchestrator.engines.pool import EnginePool

__all__ = ["EnginePool"]
