"""The rule of the object itself, as CEL."""

from collections.abc import Iterable

from echorl_manifest.crd.rules.defaults import accepted
from echorl_manifest.crd.validations import Validation, validation
from echorl_manifest.models.run import Metadata


def run() -> Iterable[Validation]:
    """At the object itself."""
    yield validation(
        "size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z][-a-z0-9]*$')",
        f'found "{{self.metadata.name}}"; accepted: {accepted(Metadata, "name")}',
        field="metadata.name",
    )
