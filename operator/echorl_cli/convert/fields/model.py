"""spec.model, and how long a sequence may be."""

from echorl_cli.convert.draft import Kind, ManifestDraft
from echorl_cli.convert.keys.inference import ENGINE
from echorl_cli.convert.settings import Settings
from echorl_manifest.models.model import is_path

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
DEFAULT_SEQ_LEN = 2048
DEFAULT_LORA = {"rank": 16, "alpha": 32.0}


def build(settings: Settings, draft: ManifestDraft) -> None:
    """The model, its adapter, its codec and the longest sequence."""
    _name(settings, draft)
    _renderer(settings, draft)
    length = _lengths(settings, draft)
    draft.put("spec.model.maxModelLen", length[0], length[1])
    _dtype(settings, draft)
    _lora(settings, draft)


def _name(settings: Settings, draft: ManifestDraft) -> None:
    key = settings.one("model.name", "trainer.model.name", "orchestrator.model.name", f"{ENGINE}.model")
    name = settings.text(key) if key else DEFAULT_MODEL
    draft.put("spec.model.name", name, key or "")
    text = f"{name} is fetched from the hub in a cluster; `echorl run` needs it in the hub's cache, or a path instead"
    if key is None:
        text = f"no file names a model; {DEFAULT_MODEL} is prime-rl's default"
    elif name and is_path(name):
        text = f"{name} is a path: of the run's volume in a cluster, of this machine with `echorl run`"
    draft.tell(Kind.TO_FILL_IN, "spec.model.name", text)


def _renderer(settings: Settings, draft: ManifestDraft) -> None:
    if settings.has("orchestrator.renderer") and settings.value("orchestrator.renderer") is None:
        draft.put("spec.model.renderer", "engine", "orchestrator.renderer")
        return
    key = "orchestrator.renderer.name"
    name = settings.text(key)
    if name == "default":
        draft.say(Kind.NO_COUNTERPART, key, "codecs are named by a model's family; auto stands")
    elif name is not None:
        draft.put("spec.model.renderer", name, key)


def _lengths(settings: Settings, draft: ManifestDraft) -> tuple[int, str]:
    """The longest sequence and its key; also sets what the trainer packs."""
    key = settings.first("orchestrator.seq_len", "seq_len")
    length = settings.count(key) if key else None
    source = key or ""
    longest = DEFAULT_SEQ_LEN if length is None else length
    engine = settings.count(f"{ENGINE}.max_model_len")
    if engine is not None and engine < longest:
        longest, source = engine, f"{ENGINE}.max_model_len"
    elif engine is not None and engine > longest:
        text = f"an episode ends at {longest} tokens, which is what a sample may have, instead of being cut afterwards"
        draft.say(Kind.CHANGED, f"{ENGINE}.max_model_len", text)
    packed = settings.first("trainer.model.seq_len", "seq_len")
    if packed and (tokens := settings.count(packed)) != longest:
        draft.put("spec.trainer.seqLen", tokens, packed)
    return longest, source


def longest_sequence(draft: ManifestDraft) -> int:
    """What ``build`` set."""
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
        key = settings.one(f"{base}.{name}", f"orchestrator.model.lora.{name}")
        value = settings.number(key) if key else DEFAULT_LORA[name]
        draft.put(f"spec.model.lora.{name}", value, key or base)
    key = f"{base}.target_modules"
    modules = settings.value(key)
    draft.put("spec.model.lora.targetModules", modules, key)
    if modules is None:
        text = "prime-rl also adapts gate_proj, up_proj and down_proj by default; name them in targetModules"
        draft.tell(Kind.CHANGED, key, text)
