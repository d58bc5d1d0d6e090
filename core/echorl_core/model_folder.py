"""What a model folder of the hub says of its model, and which of its tensors are trained and served."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from echorl_core.capped import MAX_JSON_BYTES, read_capped

ROUTER_BIAS = ".e_score_correction_bias"
"""How the name of a router's bias ends, which chooses experts and weighs none. It is published in float32 whatever the
model's dtype, as the hub's folders have it: two experts may differ by less than bfloat16 tells apart."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def number_of_config(folder: Path, name: str) -> int | None:
    """A whole number of the folder's config.json; None if it does not say, or cannot be read."""
    try:
        config = json.loads(read_capped(folder / "config.json", MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    text = config.get("text_config")
    value = (text if isinstance(text, dict) else config).get(name)
    return value if isinstance(value, int) else None


def own_tensors(folder: Path) -> Callable[[str], bool]:
    """Whether a tensor of the folder, by its name, is the model's own.

    Layers behind its last one predict further tokens (``num_nextn_predict_layers``); they are neither trained nor
    served.
    """
    layers = number_of_config(folder, "num_hidden_layers")
    if layers is None or not number_of_config(folder, "num_nextn_predict_layers"):
        return lambda _name: True
    return lambda name: (found := _LAYER.search(name)) is None or int(found[1]) < layers
