"""Publishes a policy version: gather on all ranks, safetensors files and a manifest on rank 0, a probe.

    prepare(version)   rank 0 opens a folder that no reader sees yet
    transfer(tensors)  all ranks walk the gather; rank 0 writes files as tensors arrive
    complete()         all ranks compute the probe; rank 0 makes the folder visible and describes it

Mode ``http``: the folder lies in a spool of this process and server.py serves it. Mode ``disk``: the folder lies
under ``RUN/broadcasts``. The newest two versions stay.
"""

import hashlib
import json
import math
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
import torch
from transformers import AutoTokenizer

from echorl_core.config import ModelConfig
from echorl_core.identity import RunIdentity
from echorl_core.wire.weights import PolicyAnnouncement, Probe, WeightManifest
from echorl_trainer.model import Policy
from echorl_trainer.parallel import Ranks
from echorl_trainer.step import NonFinite, probe_logprobs
from echorl_trainer.weights import MANIFEST, AdapterFolder, SafetensorsFolder, WeightStore

# float32 is what engine and trainer agreed to on CPU, with a margin; bfloat16 awaits its measurement on a GPU.
PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}


def probe_ids(model: ModelConfig, run_uid: str, count: int) -> list[int]:
    """``count`` ordinary token ids, fixed by the run's uid: no special or added token, all below the vocabulary's size.

    Raises:
        ValueError: the tokenizer has no ordinary token.
    """
    config = json.loads((Path(model.path) / "config.json").read_text())
    vocab_size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ordinary = sorted(id_ for id_ in set(tokenizer.get_vocab().values()) - special if 0 <= id_ < vocab_size)
    if not ordinary:
        raise ValueError(f"{model.path}: the tokenizer has no ordinary token below vocab_size {vocab_size}")
    return random.Random(f"echorl probe {run_uid}").choices(ordinary, k=min(count, model.max_model_len))


class Publisher:
    """Publishes versions of one policy; every rank holds one and calls the same methods in the same order."""

    def __init__(
        self,
        policy: Policy,
        ranks: Ranks,
        identity: RunIdentity,
        *,
        probe_token_ids: list[int],
        store: WeightStore | None,
    ) -> None:
        """``store``: on rank 0; None elsewhere."""
        self._policy = policy
        self._ranks = ranks
        self._identity = identity
        self._probe_token_ids = probe_token_ids
        self._store = store
        self._version = -1
        self._began = 0.0
        self._seconds_gather = 0.0
        self._folder = Path()
        self._writer: SafetensorsFolder | None = None

    def prepare(self, version: int) -> None:
        """Begin version ``version``."""
        self._version, self._began = version, time.monotonic()
        if self._store is not None:
            self._folder = self._store.start(version)
            adapter = self._policy.adapter
            self._writer = (
                SafetensorsFolder(self._folder, self._policy.dtype)
                if adapter is None
                else AdapterFolder(self._folder, self._policy.dtype, adapter.config)
            )

    def transfer(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Walk all tensors of the policy; collective, since each is gathered when it is asked for."""
        for name, tensor in tensors:
            if self._writer is not None:
                self._writer.add(name, tensor)
        self._seconds_gather = time.monotonic() - self._began

    def complete(self) -> PolicyAnnouncement | None:
        """Make the version visible to readers; collective. What to announce on rank 0, None elsewhere.

        Raises:
            NonFinite: the policy's logprobs are NaN or infinite; nothing is published.
        """
        logprobs = probe_logprobs(self._policy, self._ranks, self._probe_token_ids)
        if not all(math.isfinite(value) for value in logprobs):
            raise NonFinite(f"probe of policy version {self._version}: logprobs are not finite; it is not published")
        if self._store is None or self._writer is None:
            return None
        files, tensors = self._writer.finish()
        self._writer = None
        manifest = msgspec.json.encode(
            WeightManifest(
                run_uid=self._identity.uid,
                attempt=self._identity.attempt,
                version=self._version,
                kind=self._kind,
                files=files,
                tensors=tensors,
            )
        )
        (self._folder / MANIFEST).write_bytes(manifest)
        self._store.finish(self._version)
        return PolicyAnnouncement(
            attempt=self._identity.attempt,
            version=self._version,
            kind=self._kind,
            digest=hashlib.sha256(manifest).hexdigest(),
            url=self._store.url(self._version),
            size_bytes=sum(file.size for file in files),
            seconds_gather=self._seconds_gather,
            probe=Probe(
                token_ids=self._probe_token_ids, logprobs=logprobs, tolerance=PROBE_TOLERANCE[self._policy.dtype]
            ),
        )

    @property
    def _kind(self) -> Literal["full", "adapter"]:
        return "full" if self._policy.adapter is None else "adapter"

    def pin(self) -> Path | None:
        """A folder of the last published files that no later version removes; on rank 0. Whoever uses it removes it."""
        return None if self._store is None else self._store.pin(self._version, f"pinned-{self._version}")
