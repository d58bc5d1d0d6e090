"""What commands that look at a cluster are told: which run, and where. Light to import."""

from pathlib import Path
from typing import Annotated

import typer

from echorl_manifest.models.base import is_namespace


def _checked(namespace: str | None) -> str | None:
    if namespace is not None and not is_namespace(namespace):
        accepted = "at most 63 lower-case letters, digits and '-', with a letter or digit first and last"
        raise typer.BadParameter(f"found {namespace[:80]!r}; accepted: {accepted}")
    return namespace


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of an EchoRLRun.")]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", callback=_checked, help="Default: the context's.")
]
ContextOption = Annotated[str | None, typer.Option(help="Context of the kubeconfig; default: the current one.")]
KubeconfigOption = Annotated[Path | None, typer.Option(help="Default: KUBECONFIG, else ~/.kube/config.")]
