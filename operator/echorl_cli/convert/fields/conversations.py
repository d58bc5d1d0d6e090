"""A file of supervised fine-tuning: mode sft on given conversations."""

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields.environments import Scene
from echorl_cli.convert.fields.forms import label
from echorl_cli.convert.keys.conversations import ROLES
from echorl_cli.convert.settings import Settings
from echorl_manifest import Problem

_OWN = ("assistant",)
"""What trains by default, in both systems."""


def build(scene: Scene) -> None:
    """Mode, batches, roles that train, and an environment for each data set."""
    settings, draft = scene.settings, scene.draft
    if settings.text("data.type") not in {None, "sft"}:
        draft.error("data.type", "sft", NO_VERSION)
    draft.put("spec.algorithm.mode", "sft", "data")
    _batches(settings, draft)
    flags = {role: settings.flag(f"data.loss_mask.{role}") for role in ROLES}
    roles = [role for role, flag in flags.items() if flag or (flag is None and role in _OWN)]
    if tuple(roles) != _OWN:
        draft.put("spec.algorithm.sft.trainRoles", roles, "data.loss_mask")
    missing = [dataset for index in range(settings.items("data.source")) for dataset in _environment(scene, index)]
    if missing or not settings.items("data.source"):
        lacking = f"no conversations for {', '.join(missing) or 'a data set that nothing names'}"
        accepted = (
            f"--environment {missing[0] if missing else 'NAME'}=FILE.jsonl, an object with messages a line "
            "(docs/environments.md), or =import:pkg.module:factory; for each"
        )
        settings.problems.append(Problem("--environment", lacking, accepted, "a run reads no data sets of a hub"))
    settings.value("data.source")


def _batches(settings: Settings, draft: ManifestDraft) -> None:
    rows, length = settings.count("data.batch_size"), settings.count("data.seq_len")
    if rows is not None and length is not None:
        path = "spec.algorithm.tokenBatchSize"
        draft.put(path, rows * length, "data.batch_size")
        text = f"{rows} rows of {length} tokens each; there every token counts, here only those that train"
        draft.tell(Kind.CHANGED, path, text)


def _environment(scene: Scene, index: int) -> list[str]:
    """Write the environment of a data set; returns it where no file or type stands for it."""
    base, to = f"data.source[{index}]", f"spec.environments.train[{index}]"
    dataset = scene.settings.text(f"{base}.dataset") or ""
    name = label(dataset.removesuffix(".jsonl").rpartition("/")[2])
    given = scene.given(dataset, name) or (dataset if dataset.endswith(".jsonl") else "")
    scene.draft.document["spec"].setdefault("environments", {}).setdefault("train", []).append({})
    scene.names.add(name)
    scene.draft.put(f"{to}.name", name or None, f"{base}.dataset")
    if given.startswith(("builtin:", "import:")):
        scene.draft.put(f"{to}.type", given)
    elif given:
        scene.draft.put(f"{to}.type", "builtin:messages")
        scene.draft.put(f"{to}.args.path", given)
    return [] if given else [dataset]
