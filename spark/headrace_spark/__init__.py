"""Headrace for Spark: `format("headrace")`, to read and to write, batch and streaming, without a jar."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Register `format("headrace")` in a session, and make its streaming queries commit offsets after every batch."""
    from headrace_spark.cursors import CursorListener
    from headrace_spark.source import HeadraceSource

    spark.dataSource.register(HeadraceSource)
    CursorListener.add_to(spark)
