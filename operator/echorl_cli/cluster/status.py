"""``echorl status RUN``: where a run stands, and how long each phase took."""

import json
import sys
import time
from typing import Annotated, Any

import msgspec
import typer

from echorl_cli.cluster.access import Cluster, carry_out
from echorl_cli.cluster.notation import Notation
from echorl_cli.cluster.options import ContextOption, KubeconfigOption, NamespaceOption, RunArgument
from echorl_cli.cluster.summary import summary
from echorl_cli.cluster.view import drawn, plain


def status_command(
    run: RunArgument,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    output: Annotated[Notation, typer.Option("--output", "-o", help="Notation.")] = Notation.TEXT,
) -> None:
    """Show where a run stands: step, reward, policy, checkpoint, pods, restarts, conditions, timeline."""

    async def work(cluster: Cluster) -> str:
        stored: dict[str, Any] = msgspec.json.decode(await cluster.run(run))
        told = summary(stored, time.time())
        if output is Notation.JSON:
            return f"{json.dumps(told, indent=2, ensure_ascii=False)}\n"
        return drawn(told) if sys.stdout.isatty() else plain(told)

    carry_out(work, kubeconfig=kubeconfig, context=context, namespace=namespace)
