import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from echorl_core import arrays
from echorl_core.wire.batch import MicroBatch, RankBatch


class Holder(msgspec.Struct):
    values: np.ndarray


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


def test_arrays_are_views_of_the_message() -> None:
    data = arrays.pack(micro_batch(np.arange(1000, dtype=np.int32)))
    back = arrays.unpack(data, MicroBatch)
    assert np.shares_memory(back.token_ids, np.frombuffer(data, np.uint8))
    assert not back.token_ids.flags.writeable


@given(
    npst.arrays(st.sampled_from([np.uint8, np.int16, np.int32, np.int64, np.float32, np.float64]), st.integers(0, 9))
)
def test_dtypes_that_may_travel(values: np.ndarray) -> None:
    back = arrays.unpack(arrays.pack(Holder(values)), Holder).values
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


def test_a_strided_and_a_big_endian_array_arrive_as_what_they_mean() -> None:
    for values in (np.arange(10, dtype=np.int32)[::3], np.arange(4, dtype=">i4")):
        assert arrays.unpack(arrays.pack(Holder(values)), Holder).values.tolist() == values.tolist()


def test_a_dtype_without_a_code_is_refused() -> None:
    with pytest.raises(TypeError, match="found dtype complex64, accepted are uint8, int16"):
        arrays.pack(Holder(np.zeros(2, np.complex64)))


@pytest.mark.parametrize(
    ("code", "data", "problem"),
    [(99, b"abcd", "found extension 99"), (3, b"abcde", "an array of int32 has 5 bytes, accepted is a multiple")],
)
def test_bytes_that_are_no_array(code: int, data: bytes, problem: str) -> None:
    message = msgspec.msgpack.encode({"values": msgspec.msgpack.Ext(code, data)})
    with pytest.raises(msgspec.ValidationError, match=problem):
        arrays.unpack(message, Holder)


def test_a_list_of_numbers_is_no_array() -> None:
    with pytest.raises(msgspec.ValidationError, match="found list"):
        arrays.unpack(msgspec.msgpack.encode({"values": [1, 2]}), Holder)
