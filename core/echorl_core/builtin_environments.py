"""Built-in environments, by name: the module, and which field of ``Environment`` it sets.

Generated from ``orchestrator/echorl_orchestrator/environments`` by ``make generate``; a check fails when it is stale.
"""

BUILTIN_ENVIRONMENTS: dict[str, tuple[str, str]] = {
    "choice": ("echorl_orchestrator.environments.choice", "text_env"),
    "consultancy": ("echorl_orchestrator.environments.consultancy", "multi_agent"),
    "debate": ("echorl_orchestrator.environments.debate", "multi_agent"),
    "digits": ("echorl_orchestrator.environments.digits", "text_env"),
    "kuhn": ("echorl_orchestrator.environments.kuhn", "multi_agent"),
    "messages": ("echorl_orchestrator.environments.messages", "given"),
    "terminal": ("echorl_orchestrator.environments.terminal", "text_env"),
    "terminal-demonstrations": ("echorl_orchestrator.environments.demonstrations", "given"),
}
