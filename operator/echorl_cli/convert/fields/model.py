"""spec.model, and how long a sequence may be."""

from echorl_cli.convert.draft import Kind, ManifestDraft
from echorl_cli.convert.keys.environments import TRAIN
from echorl_cli.convert.keys.inference import ENGINE
from echorl_cli.convert.settings import Settings
from echorl_manifest.models.model import is_path


def build(settings: Settings, draft: ManifestDraft) -> None:
    """The model, its adapter, its codec and the longest sequence."""
    _name(settings, draft)
    _renderer(settings, draft)
    length = _lengths(settings, draft)
    draft.put("spec.model.maxModelLen", length[0], length[1])
    _dtype(settings, draft)
    _lora(settings, draft)


def _name(settings: Settings, draft: ManifestDraft) -> None:
    key = "model.name"
    name = settings.text(key)
    draft.put("spec.model.name", name, key)
    text = f"{name} is fetched from the hub in a cluster; `echorl run` needs it in the hub's cache, or a path instead"
    if not settings.has(key):
        text = f"no file names a model; {name} is prime-rl's default"
    elif name and is_path(name):
        text = f"{name} is a path: of the run's volume in a cluster, of this machine with `echorl run`"
    draft.tell(Kind.TO_FILL_IN, "spec.model.name", text)


def _renderer(settings: Settings, draft: ManifestDraft) -> None:
    if settings.has("orchestrator.renderer") and settings.value("orchestrator.renderer") is None:
        draft.put("spec.model.renderer", "engine", "orchestrator.renderer")
        return
    key = "orchestrator.renderer.name"
    name = settings.text(key)
    if name == "default" and not _attributes(settings):
        draft.put("spec.model.renderer", "engine", key)
        draft.say(
            Kind.CHANGED, key, "engine: vLLM renders by the model's chat template, as prime-rl's default renderer"
        )
    elif name == "default":
        text = "the family of the model's chat template: ECHO and mode sft need a codec that tells whose a token is"
        draft.say(Kind.NO_COUNTERPART, key, "a chat template alone does not tell whose a token is; auto stands")
        draft.tell(Kind.TO_FILL_IN, "spec.model.renderer", text)
    elif name is not None:
        draft.put("spec.model.renderer", name, key)


def _attributes(settings: Settings) -> bool:
    """Whether the run asks whose a token is: mode sft and ECHO do."""
    sources = [f"{TRAIN}.source[{index}]" for index in range(settings.items(f"{TRAIN}.source"))]
    named = {settings.peek(f"{base}.algo.type") for base in ("orchestrator", *sources)}
    return (
        settings.supervised
        or bool(named & {"sft", "echo"})
        or any(settings.peek(f"{base}.echo") is not None for base in sources)
    )


def _lengths(settings: Settings, draft: ManifestDraft) -> tuple[int, str]:
    """The longest sequence and its key; also sets what the trainer packs."""
    keys = ("data.seq_len",) if settings.supervised else ("orchestrator.seq_len", "seq_len")
    source = settings.first(*keys) or ""
    longest = settings.count(source) or 0
    engine = settings.count(f"{ENGINE}.max_model_len")
    if engine is not None and engine < longest:
        longest, source = engine, f"{ENGINE}.max_model_len"
    elif engine is not None and engine > longest:
        text = f"an episode ends at {longest} tokens, which is what a sample may have, instead of being cut afterwards"
        draft.say(Kind.CHANGED, f"{ENGINE}.max_model_len", text)
    packed = settings.first("trainer.model.seq_len", *keys[-1:])
    if packed and settings.has(packed) and (tokens := settings.count(packed)) != longest:
        draft.put("spec.trainer.seqLen", tokens, packed)
    return longest, source


def longest_sequence(draft: ManifestDraft) -> int:
    """The longest sequence in tokens, which ``build`` has put into the draft."""
    return int(draft.document["spec"]["model"]["maxModelLen"])


def _dtype(settings: Settings, draft: ManifestDraft) -> None:
    key = f"{ENGINE}.dtype"
    dtype = settings.text(key)
    if dtype in {"float32", "bfloat16"}:
        draft.put("spec.model.dtype", dtype, key)
    elif dtype not in {None, "auto"}:
        draft.say(Kind.NO_COUNTERPART, key, "weights are float32 or bfloat16; bfloat16 stands")


def _lora(settings: Settings, draft: ManifestDraft) -> None:
    base = "trainer.model.lora"
    if settings.value(base) is None and not settings.has("orchestrator.model.lora"):
        return
    for name in ("rank", "alpha"):
        key = f"{base}.{name}"
        draft.put(f"spec.model.lora.{name}", settings.number(key), key)
    key = f"{base}.target_modules"
    draft.put("spec.model.lora.targetModules", settings.value(key), key)
