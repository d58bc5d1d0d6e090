"""One-dimensional numpy columns inside msgspec structs: raw little-endian bytes, no per-token Python.

An array is a MessagePack extension whose code names its dtype, so its bytes are written and read where they stand.
"""

from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]

T = TypeVar("T")

_DTYPES = {1: "|u1", 2: "<i2", 3: "<i4", 4: "<i8", 5: "<f4", 6: "<f8", 7: "<u2"}
"""Types by extension code; numbers are never given to another dtype."""
_CODES = {np.dtype(text): code for code, text in _DTYPES.items()}


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise TypeError(f"wire arrays have one dimension, found shape {value.shape}")
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        if little.dtype not in _CODES:
            raise TypeError(f"wire arrays: found dtype {value.dtype}, accepted are {', '.join(map(str, _CODES))}")
        return msgspec.msgpack.Ext(_CODES[little.dtype], little.data.cast("B") if len(little) else b"")
    raise TypeError(f"cannot encode {type(value).__name__}")


def _extension(code: int, data: memoryview) -> Any:
    if code not in _DTYPES:
        raise msgspec.ValidationError(f"found extension {code}, accepted are {sorted(_DTYPES)}")
    dtype = np.dtype(_DTYPES[code])
    if len(data) % dtype.itemsize:
        raise msgspec.ValidationError(f"an array of {dtype} has {len(data)} bytes, accepted is a multiple")
    return np.frombuffer(data, dtype)


def _decode(kind: type, value: Any) -> Any:
    if (kind is np.ndarray or getattr(kind, "__origin__", None) is np.ndarray) and isinstance(value, np.ndarray):
        return value
    raise TypeError(f"found {type(value).__name__}, accepted is {kind}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode)


def pack(value: msgspec.Struct) -> bytes:
    """Encode a struct, arrays included, as keyed msgpack."""
    return _encoder.encode(value)


def unpack(data: bytes | memoryview, kind: type[T]) -> T:
    """Decode what ``pack`` wrote; arrays are read-only views of ``data``, which they keep in memory.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: the bytes are no ``kind``.
    """
    return msgspec.msgpack.decode(data, type=kind, ext_hook=_extension, dec_hook=_decode)
