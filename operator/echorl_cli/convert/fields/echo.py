"""spec.environments.train[].echo: from a block of the environment, or from the algorithm ``echo``."""

from echorl_cli.convert.draft import Kind, ManifestDraft
from echorl_cli.convert.fields.algorithm import Chosen
from echorl_cli.convert.fields.forms import hook
from echorl_cli.convert.settings import Settings

ROLES = ("system", "user", "assistant", "tool")
ALGORITHM_ALPHA = 0.1
"""The alpha of the algorithm ``echo``, whose default is the role tool alone."""

EARLIER_FORM = "the earlier form of echo.tool; what alpha was divided by changed from version to version: look at it"
FILTER_CONTRACT = (
    "EchoRL calls it with the episode as a dict and the kwargs, and wants a list of booleans for each sample; "
    "see docs/environments.md"
)


def build(settings: Settings, draft: ManifestDraft, base: str, to: str, choice: Chosen) -> None:
    """Write the block of the environment ``base``, if it has one."""
    block = f"{base}.echo"
    written = settings.peek(block) is not None
    if written and choice.echo is not None:
        source = settings.written(choice.source)
        draft.error(block, f"no block where {source} is echo", "both say which tokens are predicted")
        return
    if written:
        if settings.written(f"{block}.tool").endswith(".sft"):
            draft.say(Kind.CHANGED, f"{block}.tool", EARLIER_FORM)
        _roles(settings, draft, block, to)
        _filter(settings, draft, f"{block}.filter", to)
    elif choice.echo is not None:
        roles = f"{choice.echo}.roles"
        if settings.table(roles) is None:
            draft.put(f"{to}.tool.alpha", ALGORITHM_ALPHA, choice.source)
        else:
            _roles(settings, draft, roles, to)
        _filter(settings, draft, f"{choice.echo}.filter", to)


def _roles(settings: Settings, draft: ManifestDraft, base: str, to: str) -> None:
    for role in ROLES:
        key = f"{base}.{role}"
        if settings.value(key) is None:
            continue
        alpha = settings.number(f"{key}.alpha")
        draft.put(f"{to}.{role}.alpha", ALGORITHM_ALPHA if alpha is None else alpha, f"{key}.alpha")
    draft.put(f"{to}.tool.toolNames", settings.value(f"{base}.tool.tool_names"), f"{base}.tool.tool_names")


def _filter(settings: Settings, draft: ManifestDraft, base: str, to: str) -> None:
    own = hook(settings, draft, base, FILTER_CONTRACT)
    for name, key in (("import", "import_path"), ("kwargs", "kwargs")):
        draft.put(f"{to}.filter.{name}", own.get(name), f"{base}.{key}")
