"""What commands that look at a cluster are told: which run, and where. Light to import."""

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of an EchoRLRun.")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")]
ContextOption = Annotated[str | None, typer.Option(help="Context of the kubeconfig; default: the current one.")]
KubeconfigOption = Annotated[Path | None, typer.Option(help="Default: KUBECONFIG, else ~/.kube/config.")]
