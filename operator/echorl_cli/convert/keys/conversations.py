"""Keys of a file of supervised fine-tuning, beside those of ``[trainer]``, which it has at the top."""

from collections.abc import Iterator

from echorl_cli.convert.keys.row import Key, made, none

ROLES = ("system", "user", "assistant", "tool")
_FILE = "the JSONL file holds what is trained on, in its order; the order of an epoch follows from spec.seed"
_PACKING = "conversations are packed whole; a step has tokenBatchSize of them"


def _rows() -> Iterator[Key]:
    how = "builtin:messages with the file that --environment gives it"
    yield made("data.source[].dataset", "spec.environments.train[].type, args", how, "ours/conversations.jsonl")
    yield made("data.type", "spec.algorithm.mode", "sft alone", "sft")
    how = "times data.seq_len; there every token of a row counts, here only those that train"
    yield made("data.batch_size", "spec.algorithm.tokenBatchSize", how, 8, 128)
    how = "as it is; also in tokenBatchSize"
    yield made("data.seq_len", "spec.model.maxModelLen", how, 4096, 128)
    for role in ROLES:
        yield made(f"data.loss_mask.{role}", "spec.algorithm.sft.trainRoles", "the roles that are true", True)
    yield made("data.seed", "spec.seed", "as it is", 7)
    for key in ("pack_function", "micro_batch_size", "num_workers"):
        yield none(f"data.{key}", _PACKING, 1)
    for key in ("shuffle", "subsets", "splits", "probabilities", "stopping_strategy", "revision"):
        yield none(f"data.{key}", _FILE, True)
    yield none("data.columns.*", _FILE, {"messages": "chat"})
    yield none("data.source[].*", _FILE, {"split": "train"})
    yield none("val.*", "an environment under environments.eval with holdout", {"interval": 10})
    yield none("loss_impl", "the output head always works in chunks", "liger")


ROWS: tuple[Key, ...] = tuple(_rows())
