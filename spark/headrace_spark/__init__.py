"""Headrace for Spark: `format("headrace")`, to read and to write, batch and streaming, without a jar."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make `format("headrace")` known to a session, and have its streaming queries commit cursors after every batch."""
    from headrace_spark.cursors import CursorListener
    from headrace_spark.source import HeadraceSource

    spark.dataSource.register(HeadraceSource)
    CursorListener.add_to(spark)
