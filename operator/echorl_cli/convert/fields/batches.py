"""Batches, groups, staleness and filters."""

from echorl_cli.convert.draft import NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.fields.forms import tidy
from echorl_cli.convert.keys.environments import TRAIN
from echorl_cli.convert.settings import Settings

LARGEST_OVERSAMPLING = 16
_FACTOR, _MOST = "orchestrator.oversampling_factor", "orchestrator.max_inflight_episodes"
_FILTERS = {"zero_advantage": "zeroAdvantage", "gibberish": "gibberish", "repetition": "repetition"}


def group_size(settings: Settings) -> tuple[int, str]:
    """Episodes of a group of the run and their key: the run's, or that of all its environments if it has none."""
    key = "orchestrator.group_size"
    if not settings.has(key):
        entries = [f"{TRAIN}.source[{index}].group_size" for index in range(settings.items(f"{TRAIN}.source"))]
        sizes = {settings.count(entry) for entry in entries}
        key = entries[0] if len(sizes) == 1 and None not in sizes else key
    return settings.count(key) or 0, key


def build(settings: Settings, draft: ManifestDraft) -> None:
    """Put into the draft what a step trains on."""
    path = "spec.algorithm"
    size, key = group_size(settings)
    draft.put(f"{path}.groupSize", size, key)
    if not settings.has(key):
        text = f"no file gives a size of groups; prime-rl's default is {size}, which leaves no advantage"
        draft.tell(Kind.TO_FILL_IN, f"{path}.groupSize", text)
    tokens_key, episodes_key = "orchestrator.token_batch_size", "orchestrator.batch_size"
    tokens = settings.count(tokens_key)
    episodes = settings.count(episodes_key) if tokens is None or settings.peek(episodes_key) is not None else None
    draft.put(f"{path}.tokenBatchSize", tokens, tokens_key)
    draft.put(f"{path}.batchSize", episodes, episodes_key)
    key = "orchestrator.max_off_policy_steps"
    staleness = settings.count(key)
    draft.put(f"{path}.maxStaleness", staleness, key)
    _in_flight(settings, draft, episodes, staleness or 0)
    _filters(settings, draft)


_MOST_EPISODES = 2**53
"""Beyond which a number has no whole part of its own."""


def most_at_once(settings: Settings) -> tuple[int | None, str]:
    """Episodes that prime-rl has in flight at the most, and the key that says it."""
    factor, episodes = settings.number(_FACTOR), settings.count("orchestrator.batch_size")
    if factor is not None and episodes and settings.peek(_MOST) is None:
        return max(1, int(min(episodes * factor, _MOST_EPISODES))), _FACTOR
    return settings.count(_MOST), _MOST


def _in_flight(settings: Settings, draft: ManifestDraft, episodes: int | None, staleness: int) -> None:
    """How far sampling may run ahead: as far as the episodes that may be in flight at once need."""
    factor, (most, key) = settings.number(_FACTOR), most_at_once(settings)
    if not episodes or most is None or not settings.has(key):
        return
    if factor is None:
        factor = tidy(most / (episodes * (staleness + 1)))
    elif key == _MOST and most != int(min(episodes * factor, _MOST_EPISODES)):
        reason = f"it is not batch_size times {settings.written(_FACTOR)}"
        draft.error(_MOST, f"{int(min(episodes * factor, _MOST_EPISODES))}, or one of the two keys", reason)
        return
    fitting = min(max(factor, 1.0), LARGEST_OVERSAMPLING)
    if fitting != factor and (key == _FACTOR or factor > 1):
        bounds = f"and oversampling is from 1 to {LARGEST_OVERSAMPLING}; {fitting:g} stands"
        draft.say(Kind.CHANGED, key, f"in batches that is {factor:g}, {bounds}, and maxConcurrent has the number")
    if key == _FACTOR or fitting > 1:
        draft.put("spec.algorithm.oversampling", float(fitting), key)


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
