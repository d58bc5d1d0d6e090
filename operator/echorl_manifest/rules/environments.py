"""Rules of environments that are no rows: names that are taken, built-ins that do not exist."""

from collections.abc import Iterator

from echorl_core.builtin_environments import BUILTIN_ENVIRONMENTS
from echorl_core.names import RESERVED_ENVIRONMENT_NAME
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, eval_environments, finding, train_environments
from echorl_manifest.schema import nearest

GIVEN_NAMES = tuple(name for name, kind in BUILTIN_ENVIRONMENTS.items() if kind == "given")
GIVEN = tuple(f"builtin:{name}" for name in GIVEN_NAMES)
"""Built-in environments of which every task is a whole conversation."""
ECHO_ROLES = ("system", "user", "assistant", "tool", "warning")


def name_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """A name that is taken, a built-in that does not exist."""
    seen: dict[str, str] = {}
    for path, environment in (*train_environments(spec), *eval_environments(spec)):
        name = environment.name
        if name in seen and name != RESERVED_ENVIRONMENT_NAME:
            reason = f"{seen[name]} has it already"
            yield finding(f"{path}.name", name, "a name of its own", reason, also=(f"{seen[name]}.name",))
        seen.setdefault(name, path)
        source, _, builtin = environment.type.partition(":")
        if source == "builtin" and builtin not in BUILTIN_ENVIRONMENTS:
            meant = nearest(builtin, BUILTIN_ENVIRONMENTS)
            accepted = ", ".join(f"builtin:{known}" for known in BUILTIN_ENVIRONMENTS)
            reason = f"did you mean builtin:{meant}?" if meant else "no such environment"
            yield finding(f"{path}.type", environment.type, f"{accepted} or import:<pkg.module:factory>", reason)
