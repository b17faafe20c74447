"""Kafka's default partitioner over Arrow columns: murmur2 of the key, so that Spark and Kafka clients agree.

Computes the hash (org.apache.kafka.common.utils.Utils.murmur2, seed 0x9747b28c) and the partition from it. All rows are
hashed at once with numpy: the loop runs over the 4-byte words of the longest key, not over rows.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


def binary_parts(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return (offsets, bytes) of a binary, string, large_binary or large_string array.

    Value i is bytes[offsets[i] : offsets[i + 1]]. Shapes: (rows + 1,) and (bytes,). Only the offsets are copied.
    """
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if not wide and not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise TypeError(f"a column of binary or string is needed, not {column.type}")
    _, offsets, content = column.buffers()
    if len(column) == 0 or offsets is None:
        return np.zeros(len(column) + 1, np.int64), np.empty(0, np.uint8)
    kind = np.int64 if wide else np.int32
    places = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return places, np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)


def murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the hash of each key, shape (rows,). A null hashes like an empty key; callers mask nulls."""
    offsets, content = binary_parts(keys)
    starts, sizes = offsets[:-1], np.diff(offsets)
    hashes = _SEED ^ sizes.astype(np.uint32)
    words = sizes >> 2
    padded = np.concatenate([content, np.zeros(4, np.uint8)])
    with np.errstate(over="ignore"):
        live = np.flatnonzero(words > 0)
        step = 0
        while len(live):
            k = _word(padded, starts[live] + 4 * step) * _M
            k ^= k >> np.uint32(24)
            hashes[live] = (hashes[live] * _M) ^ (k * _M)
            step += 1
            live = live[words[live] > step]
        rest = sizes & 3
        tails = starts + 4 * words
        for size, shift in ((3, 16), (2, 8), (1, 0)):
            rows = np.flatnonzero(rest >= size)
            hashes[rows] ^= padded[tails[rows] + size - 1].astype(np.uint32) << np.uint32(shift)
        rows = np.flatnonzero(rest > 0)
        hashes[rows] *= _M
        hashes ^= hashes >> np.uint32(13)
        hashes *= _M
        hashes ^= hashes >> np.uint32(15)
    return hashes


def _word(content: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the little-endian 32-bit words that start at `places`."""
    word = content[places].astype(np.uint32)
    for byte in (1, 2, 3):
        word |= content[places + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def partitions_of(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """Return each key's partition as Kafka's clients do: toPositive(murmur2(key)) % partitions. Shape (rows,)."""
    return ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
