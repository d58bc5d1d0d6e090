"""One-dimensional numpy columns inside msgspec structs: raw little-endian bytes, no per-token Python."""

from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]

T = TypeVar("T")


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise TypeError(f"wire arrays have one dimension, found shape {value.shape}")
        return [value.dtype.newbyteorder("<").str, value.tobytes()]
    raise TypeError(f"cannot encode {type(value).__name__}")


def _decode(kind: type, value: Any) -> Any:
    if kind is np.ndarray or getattr(kind, "__origin__", None) is np.ndarray:
        dtype, data = value
        return np.frombuffer(data, dtype=np.dtype(dtype))
    raise TypeError(f"cannot decode {kind}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode)


def pack(value: msgspec.Struct) -> bytes:
    """Encode a struct, arrays included, as keyed msgpack."""
    return _encoder.encode(value)


def unpack(data: bytes | memoryview, kind: type[T]) -> T:
    """Decode what ``pack`` wrote; arrays are read-only views of the decoded bytes.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: the bytes are no ``kind``.
    """
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode)
