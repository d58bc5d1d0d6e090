"""What a run becomes in a cluster, for people to read: its children as YAML documents, its connections as a table."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from echorl_cli.manifest_file import InvalidManifest
from echorl_cli.validate import end_with
from echorl_cli.yaml_text import parse_yaml
from echorl_core.names import ExitCode
from echorl_manifest import EchoRLRun
from echorl_manifest.rules.modes import num_engines
from echorl_operator.children import (
    Arrow,
    Rendering,
    arrows,
    cluster_problems,
    common,
    inference_deployment,
    orchestrator_pod,
    prepare_pod,
    render,
    spec_of,
    trainer_set,
)
from echorl_operator.children.arrows import ANYWHERE
from echorl_operator.children.node_network import warnings
from echorl_operator.children.target import Object, hashed
from echorl_operator.settings_file import read_settings

UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"
"""Stands for the uid that the API server gives a run."""
_EGRESS = "spec.egress["
_LONGEST_LIST = 4


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as they are, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Blocks.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def rendering_or_exit(file: Path, run: EchoRLRun, namespace: str | None, settings: Path | None) -> Rendering:
    """A file's run as an operator would render it; or every problem on stderr and the end, with the code for bad input.

    Args:
        file: that the run comes from, for messages.
        run: valid.
        namespace: where it would live; None: the one that it names, else ``default``.
        settings: file with the installation's; None: the defaults.
    """
    try:
        installation = read_settings(settings, parse_yaml)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.BAD_INPUT) from error
    if problems := cluster_problems(run, installation):
        end_with(InvalidManifest(file, problems))
    where = namespace or run.metadata.namespace or "default"
    return render(run, uid=UNKNOWN_UID, namespace=where, generation=1, settings=installation)


def children(rendering: Rendering, attempt: int) -> list[Object]:
    """All children of an attempt in the order to apply them, but for the ControllerRevision, which repeats them.

    The Secret is without its data.

    Raises:
        ValueError: the rendering is of a spec that today's rules refuse.
    """
    spec = spec_of(rendering)
    resume = spec.resume if attempt == 1 or spec.resume.policy == "FromStep" else None
    return [
        *common(rendering),
        hashed(rendering.token),
        prepare_pod(rendering, attempt, resume),
        trainer_set(rendering, attempt, spec.trainer.replicas),
        inference_deployment(rendering, num_engines(spec)),
        orchestrator_pod(rendering, attempt),
    ]


def as_yaml(bodies: Sequence[Object]) -> str:
    """Objects as YAML documents."""
    return yaml.dump_all(bodies, Dumper=_Blocks, sort_keys=False, allow_unicode=True, width=120, explicit_start=True)


def as_json(bodies: Sequence[Object]) -> str:
    """Objects as one list that kubectl takes."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)}, indent=2, ensure_ascii=False) + "\n"


def arrows_table(rendering: Rendering) -> str:
    """The connections that the run's NetworkPolicies allow, a line each: from, to, port, why; and whom they miss."""
    rows = [("FROM", "TO", "PORT", "WHY"), *(_row(rendering, arrow) for arrow in arrows(rendering))]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    table = "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip() + "\n"
        for row in rows
    )
    missed = "".join(f"{line}\n" for line in warnings(spec_of(rendering)))
    return f"{table}\n{missed}" if missed else table


def _row(rendering: Rendering, arrow: Arrow) -> tuple[str, str, str, str]:
    if arrow.target.startswith(_EGRESS):
        rule = rendering.spec["egress"][int(arrow.target.removeprefix(_EGRESS).removesuffix("]"))]
        peers = _some(map(_peer, rule.get("to") or ())) or ANYWHERE
        return arrow.source, peers, _some(_ports(rule)) or "all", arrow.target
    return arrow.source, arrow.target, ", ".join(str(span) for span in arrow.ports) or "all", arrow.why


def _some(parts: Iterator[str]) -> str:
    listed = list(parts)
    more = [f"and {len(listed) - _LONGEST_LIST} more"] if len(listed) > _LONGEST_LIST else []
    return ", ".join([*listed[:_LONGEST_LIST], *more])


def _peer(peer: Mapping[str, Any]) -> str:
    block = peer.get("ipBlock")
    if isinstance(block, Mapping):
        excepted = block.get("except") or ()
        return f"{block.get('cidr')}{' except ' if excepted else ''}{' '.join(map(str, excepted))}"
    return " ".join(f"{key.removesuffix('Selector')}s {json.dumps(value)}" for key, value in peer.items())


def _ports(rule: Mapping[str, Any]) -> Iterator[str]:
    for port in rule.get("ports") or ():
        last = f"-{port['endPort']}" if port.get("endPort") else ""
        yield f"{port.get('protocol', 'TCP')}/{port.get('port', 'all')}{last}"
