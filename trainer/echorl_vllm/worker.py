"""Methods that vLLM mixes into its worker: ``--worker-extension-cls echorl_vllm.worker.WeightsExtension``.

They are called through vLLM's ``/collective_rpc``, which stops generation for as long as a call runs. So only ``apply``
does work here; ``stage`` starts a thread. Arguments and results are JSON text.
"""

from functools import partial

import msgspec

from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import PolicyId
from echorl_vllm import compat
from echorl_vllm.weights import WorkerWeights


class WeightsExtension:
    """Weight updates of one worker. vLLM constructs no object of this class, so state appears on first use."""

    _echorl_weights: WorkerWeights | None = None

    def _echorl(self) -> WorkerWeights:
        if self._echorl_weights is None:
            loader = compat.Loader(self)
            self._echorl_weights = WorkerWeights(
                form=partial(compat.loaded_form, self),
                load=loader.load,
                bring=loader.bring,
                device=compat.device_of(self),
            )
        return self._echorl_weights

    def echorl_stage(self, request: str) -> str:
        """Begin to download and check a version (``StageRequest``); answers ``WorkerReport`` at once."""
        self._echorl().stager.stage(msgspec.json.decode(request, type=StageRequest))
        return self.echorl_status()

    def echorl_status(self) -> str:
        """What is staged and applied: ``WorkerReport``."""
        return msgspec.json.encode(self._echorl().report()).decode()

    def echorl_apply(self, policy: str) -> str:
        """Put the staged ``PolicyId`` into the model; generation must be paused. Answers ``ApplyReport``."""
        report = self._echorl().apply(msgspec.json.decode(policy, type=PolicyId))
        return msgspec.json.encode(report).decode()

    def echorl_abort(self) -> str:
        """Drop what is staged; answers ``WorkerReport``."""
        self._echorl().stager.abort()
        return self.echorl_status()
