"""Built-in environments by name: which field of ``Environment`` each sets, and who may take part in it.

Generated from ``orchestrator/echorl_orchestrator/environments/builtin`` by ``make generate``; a check fails when it is
stale.
"""

BUILTIN_ENVIRONMENTS: dict[str, str] = {
    "choice": "text_env",
    "consultancy": "multi_agent",
    "debate": "multi_agent",
    "digits": "text_env",
    "kuhn": "multi_agent",
    "messages": "given",
    "swe": "runner",
    "terminal": "text_env",
    "terminal-demonstrations": "given",
}
BUILTIN_MEMBERS: dict[str, tuple[str, ...]] = {
    "consultancy": ("consultant", "judge"),
    "debate": ("a", "b", "judge"),
    "kuhn": ("first", "second"),
}
