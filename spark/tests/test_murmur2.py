"""The partitioner agrees with Kafka's."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from headrace_spark.murmur2 import binary_parts, murmur2, partitions_of


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_hashes_are_those_of_another_implementation(keys: list[bytes]) -> None:
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [reference(key) & 0xFFFFFFFF for key in keys]


@given(st.lists(st.binary(max_size=9), min_size=4, max_size=12))
def test_a_slice_hashes_as_its_own_array(keys: list[bytes]) -> None:
    whole = pa.array(keys, pa.large_binary())
    assert murmur2(whole[2:]).tolist() == murmur2(pa.array(keys[2:], pa.large_binary())).tolist()


def test_known_values_of_kafkas_own_tests() -> None:
    # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"a-little-bit-longer-string", b"abc"]
    signed = [-973932308, -790332482, -985981536, -1486304829, 479470107]
    assert murmur2(pa.array(keys)).view("int32").tolist() == signed


def test_partitions_are_positive_hash_modulo_count() -> None:
    keys = [b"21", b"foobar", b"abc"]
    expected = [(reference(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert partitions_of(pa.array(keys), 7).tolist() == expected


def test_a_column_of_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        binary_parts(pa.array([1, 2]))
