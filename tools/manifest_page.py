"""docs/manifest.md, written from the models: ``python -m tools.manifest_page > docs/manifest.md``."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from echorl_manifest.models.base import ApiModel
from echorl_manifest.models.run import EchoRLRun
from echorl_manifest.models.status import RunStatus
from echorl_manifest.mutability import Effect, effect_of
from echorl_manifest.schema import accepted_text, bare, is_model, keys

_HEAD = """\
# The manifest: every field of EchoRLRun

Generated from `operator/echorl_manifest/` by `make generate`; a test fails when it is stale.

The shortest valid manifest:

```yaml
apiVersion: echorl.dev/v1alpha1
kind: EchoRLRun
metadata: {name: first-run}
spec:
  model: {name: Qwen/Qwen3-0.6B}
  environments:
    train:
      - {name: digits, type: "builtin:digits"}
```

`echorl validate FILE` prints every problem at once; `echorl render FILE` prints what each role gets, with `--cluster`
and `--arrows` what becomes of it [in a cluster](operator/children.md). Both, and
`echorl run`, take `--set path=value` (`--set maxSteps=3 --set environments.train[0].weight=2`).

In a cluster `kubectl apply --dry-run=server -f FILE` says the same of nearly all of it, and `kubectl explain
erl.spec.trainer` prints what stands here.

Unknown keys are refused. `null` means not set. Text is never read as a number, nor a number as text.

What a change does to a run that exists: **live**: the run takes it over, and no trainer process is restarted (engines
whose pods change are replaced one by one); **restart**: the gang is restarted at its last checkpoint, as a new attempt;
**refused**: it takes a new run. To write out a default, or null for a key that is left out, is no change. Adding,
removing or reordering environments restarts the gang.

"""


_NOT_SUPPORTED = ("`spec.environments.*[].type` of `agent:`",)
_CLUSTER_ONLY = (
    "`spec.model.tokenSecretName`, `spec.model.revision` other than `main`",
    "`spec.code.configMap`, `spec.suspend`",
    "`spec.stallPolicy.action` other than `Restart`",
    "`spec.sandboxes.provider` other than `process`",
    "`spec.environments.*[].type` of an image, and `server` with it",
)
_CHANGES = {Effect.LIVE: "live", Effect.NEW_ATTEMPT: "restart", Effect.IMMUTABLE: "refused"}


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or default is PydanticUndefined:
        return "not set"
    if isinstance(default, ApiModel):
        return "see there"
    if isinstance(default, tuple) and any(isinstance(item, ApiModel) for item in default):
        items = [item.model_dump(mode="json", by_alias=True, exclude_unset=True) for item in default]
        return f"`{json.dumps(items)}`"
    return f"`{json.dumps(default)}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


def _models_inside(annotation: Any) -> Iterator[tuple[str, type[ApiModel]]]:
    """Models that a field holds, with what their path adds to the field's."""
    core = bare(annotation)
    if is_model(core):
        yield "", core
    elif get_origin(core) is tuple and is_model(bare(get_args(core)[0])):
        yield "[]", bare(get_args(core)[0])
    elif get_origin(core) is dict and is_model(bare(get_args(core)[1])):
        yield ".NAME", bare(get_args(core)[1])


def _row(key: str, field: FieldInfo, section: str | None, change: str | None) -> str:
    accepted = f"[{section}](#{_anchor(section)})" if section else _cell(accepted_text(field.rebuild_annotation()))
    cells = [f"`{key}`", accepted, _default_text(field), *([] if change is None else [change])]
    return f"| {' | '.join(cells)} | {_cell(field.description or '')} |"


def _change(path: str, section: str | None) -> str | None:
    """The cell of a field of spec; None for what is not in spec."""
    if not path.startswith("spec."):
        return None
    return "see there" if section else _CHANGES[effect_of(path)]


def _anchor(path: str) -> str:
    return "".join(character for character in path.lower() if character.isalnum() or character in "-_")


def _sections(path: str, model: type[ApiModel]) -> Iterator[str]:
    rows, below = [], []
    for key, field in keys(model).items():
        if field.annotation is Any:
            continue
        section = None
        for suffix, inner in _models_inside(field.annotation):
            section = f"{path}.{key}{suffix}".lstrip(".")
            below.append((section, inner))
        rows.append(_row(key, field, section, _change(f"{path}.{key}", section)))
    summary = " ".join((model.__doc__ or "").replace("``", "`").split())
    columns = ["field", "accepts", "default", *(["change"] if path.startswith("spec") else []), "meaning"]
    table = "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows])
    yield f"## {path or 'EchoRLRun'}\n\n{summary}\n\n{table}\n"
    for section, inner in below:
        yield from _sections(section, inner)


def _listed(head: str, lines: Iterable[str]) -> str:
    return f"{head}\n\n" + "".join(f"- {line}\n" for line in lines)


def reference() -> str:
    """The page as Markdown."""
    refused = _listed('Refused with "not supported yet" until the machinery is there:', _NOT_SUPPORTED)
    cluster = _listed('Works in a cluster; refused with "not supported yet" by `echorl run`:', _CLUSTER_ONLY)
    return "\n".join([_HEAD + refused, cluster, *_sections("", EchoRLRun), *_sections("status", RunStatus)])


if __name__ == "__main__":
    sys.stdout.write(reference())
