"""Which experts tokens went to, as vLLM tells it: an array of numpy's own file format in base64, one row a token.

Layers without experts have zeros there. There is no row for the last token, which has not been through the model.
"""

import base64
import io

import numpy as np

from echorl_core.routing import Choices, RouterShape
from echorl_orchestrator.engines.answers import invalid


def decode(text: str, shape: RouterShape) -> Choices:
    """[n, layers with experts, k] of n tokens.

    Raises:
        EpisodeError: INVALID_RESPONSE when it cannot be read, or no router of that shape can have chosen it.
    """
    try:
        found = np.lib.format.read_array(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, EOFError, MemoryError, OverflowError) as error:
        raise invalid(f"routed_experts cannot be read: {error}") from error
    layers = shape.dense_layers + shape.layers
    if found.dtype.kind not in "iu" or found.ndim != 3 or found.shape[1] != layers:
        accepted = f"whole numbers of shape (tokens, {layers}, {shape.top_k})"
        raise invalid(f"routed_experts: found {found.dtype} of shape {found.shape}, accepted are {accepted}")
    choices = found[:, shape.dense_layers :]
    if (offence := shape.offence(choices)) is not None:
        raise invalid(f"routed_experts: {offence}")
    return np.ascontiguousarray(choices, shape.dtype)
