"""Rules of monitors as CEL."""

from collections.abc import Iterable

from echorl_operator.api.rules.monitors import WITHOUT_PROJECT
from echorl_operator.crd.validations import Validation, refusal


def wandb() -> Iterable[Validation]:
    """At ``spec.monitors.wandb``."""
    for key in ("entity", "baseUrl", "secretName"):
        yield refusal("!has(self.project)", key, WITHOUT_PROJECT, found=f'"{{self.{key}}}"')
    offline = "!has(self.project) && has(self.mode) && self.mode != 'online'"
    yield refusal(offline, "mode", WITHOUT_PROJECT, "online", found='"{self.mode}"')
