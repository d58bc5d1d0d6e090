"""Batches, groups, staleness and filters."""

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.keys.environments import TRAIN
from echorl_cli.convert.settings import Settings

DEFAULT_BATCH = 128
DEFAULT_GROUP = 1
DEFAULT_STALENESS = 8
LARGEST_OVERSAMPLING = 16
_FILTERS = {"zero_advantage": "zeroAdvantage", "gibberish": "gibberish", "repetition": "repetition"}


def group_size(settings: Settings) -> tuple[int, str]:
    """Episodes of a group of the run and their key: the run's, or that of all its environments if it has none."""
    key = "orchestrator.group_size"
    if settings.value(key) is None:
        entries = [f"{TRAIN}.source[{index}].group_size" for index in range(settings.items(f"{TRAIN}.source"))]
        sizes = {settings.count(entry) for entry in entries}
        key = entries[0] if len(sizes) == 1 else ""
    size = settings.count(key) if key else None
    return (DEFAULT_GROUP, "") if size is None else (size, key)


def build(settings: Settings, draft: ManifestDraft) -> None:
    """What a step trains on."""
    path = "spec.algorithm"
    size, key = group_size(settings)
    draft.put(f"{path}.groupSize", size, key)
    if not key:
        text = f"no file gives a size of groups; prime-rl's default is {DEFAULT_GROUP}, which leaves no advantage"
        draft.tell(Kind.TO_FILL_IN, f"{path}.groupSize", text)
    tokens = settings.count("orchestrator.token_batch_size")
    episodes = settings.count("orchestrator.batch_size")
    if tokens is None and episodes is None:
        episodes = DEFAULT_BATCH
    draft.put(f"{path}.tokenBatchSize", tokens, "orchestrator.token_batch_size")
    draft.put(f"{path}.batchSize", episodes, "orchestrator.batch_size")
    staleness = settings.count("orchestrator.max_off_policy_steps")
    staleness = DEFAULT_STALENESS if staleness is None else staleness
    draft.put(f"{path}.maxStaleness", staleness, "orchestrator.max_off_policy_steps")
    _in_flight(settings, draft, episodes)
    _filters(settings, draft)


def _in_flight(settings: Settings, draft: ManifestDraft, episodes: int | None) -> None:
    factor_key, episodes_key = "orchestrator.oversampling_factor", "orchestrator.max_inflight_episodes"
    factor, most = settings.number(factor_key), settings.count(episodes_key)
    key = factor_key
    if factor is None:
        key = episodes_key
        if most is None:
            return
        if not episodes:
            draft.say(Kind.NO_COUNTERPART, key, "with tokenBatchSize EchoRL decides how many episodes are in flight")
            return
        factor = most / episodes
    elif most is not None and episodes and most != int(episodes * factor):
        reason = f"it is not batch_size times {settings.written(factor_key)}"
        draft.error(episodes_key, f"{int(episodes * factor)}, or one of the two keys", reason)
        return
    if 1 <= factor <= LARGEST_OVERSAMPLING:
        draft.put("spec.algorithm.oversampling", float(factor), key)
    else:
        nearest = 1 if factor < 1 else LARGEST_OVERSAMPLING
        text = f"in batches that is {factor:g}, and oversampling is from 1 to {LARGEST_OVERSAMPLING}; {nearest} stands"
        draft.say(Kind.CHANGED, key, text)
        draft.put("spec.algorithm.oversampling", float(nearest), key)


def _filters(settings: Settings, draft: ManifestDraft) -> None:
    """Written only when one of the lists is; the other then keeps what both systems do by default."""
    slots = {"group": "orchestrator.pre_batch_filters", "batch": "orchestrator.post_batch_filters"}
    keep = settings.flag(f"{TRAIN}.filter_zero_advantages")
    online = "orchestrator.buffer.online_difficulty_filtering"
    rules: list[dict[str, object]] = [{"type": "difficulty", "stage": "group"}] if settings.flag(online) else []
    if not any(settings.has(slot) for slot in slots.values()):
        kept = [] if keep is False else [{"type": "zeroAdvantage"}]
        if rules:
            draft.put("spec.algorithm.filters", [*rules, *kept], online)
        elif not kept:
            draft.put("spec.algorithm.filters", [], f"{TRAIN}.filter_zero_advantages")
        return
    for stage, slot in slots.items():
        if not settings.has(slot) and stage == "batch" and keep is not False:
            rules.append({"type": "zeroAdvantage"})
        for index in range(settings.items(slot)):
            base = f"{slot}[{index}]"
            name = settings.text(f"{base}.type")
            if name not in _FILTERS:
                draft.error(f"{base}.type", ", ".join(_FILTERS), NO_VERSION)
                continue
            enforce = settings.flag(f"{base}.enforce")
            enforced = name == "zero_advantage" if enforce is None else enforce
            rules.append({"type": _FILTERS[name], "enforce": enforced, "stage": stage})
    settings.value(slots["batch"]), settings.value(slots["group"])
    draft.put("spec.algorithm.filters", rules, slots["batch"])
