import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from echorl_core import arrays
from echorl_core.wire import MicroBatch, RankBatch


def micro_batch(token_ids: np.ndarray) -> MicroBatch:
    n = token_ids.shape[0]
    return MicroBatch(
        sample_ids=["e/0"],
        environments=["terminal"],
        lengths=np.array([n], np.int32),
        token_ids=token_ids,
        role=np.zeros(n, np.uint8),
        logprobs=np.linspace(-3, 0, n, dtype=np.float32),
        version_low=np.full(n, -1, np.int32),
        version_high=np.full(n, -1, np.int32),
        rl_weight=np.zeros(n, np.float32),
        ce_weight=np.zeros(n, np.float32),
        advantage=np.zeros(n, np.float32),
        temperature=np.ones(n, np.float32),
    )


@given(npst.arrays(np.int32, st.integers(1, 50)))
def test_batches_come_back_as_they_were_sent(token_ids: np.ndarray) -> None:
    batch = RankBatch(
        run_uid="u",
        attempt=1,
        step=3,
        rank=0,
        num_ranks=1,
        denominators={"rl": 7.0},
        checkpoint=False,
        last=False,
        micro_batches=[micro_batch(token_ids)],
    )
    back = arrays.unpack(arrays.pack(batch), RankBatch)
    assert back.denominators == {"rl": 7.0}
    micro = back.micro_batches[0]
    assert micro.token_ids.dtype == np.int32
    np.testing.assert_array_equal(micro.token_ids, token_ids)
    np.testing.assert_array_equal(micro.logprobs, batch.micro_batches[0].logprobs)
    assert micro.ref_logprobs is None


def test_a_renamed_field_raises_instead_of_shifting_streams() -> None:
    raw = msgspec.msgpack.decode(arrays.pack(micro_batch(np.arange(3, dtype=np.int32))))
    raw["tokens"] = raw.pop("token_ids")
    with pytest.raises(msgspec.ValidationError, match="token_ids"):
        arrays.unpack(msgspec.msgpack.encode(raw), MicroBatch)


def test_a_matrix_is_refused() -> None:
    matrix = msgspec.structs.replace(micro_batch(np.zeros(2, np.int32)), token_ids=np.zeros((2, 2), np.int32))
    with pytest.raises(TypeError, match="one dimension"):
        arrays.pack(matrix)
