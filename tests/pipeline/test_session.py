"""What `spark_session` does for sessions on this machine."""

from typing import TYPE_CHECKING

import pytest

from conveyor.cli.pipeline.job_run import job_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_python_processes_use_the_installed_package(spark: "SparkSession") -> None:
    """Not `pyspark.zip`, which they would compile again."""

    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    import pyspark

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


def test_java_prints_no_errors_after_an_interrupt(spark: "SparkSession") -> None:
    """A query that still runs when Java ends would print a long one."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    java = jvm.java
    before = java.lang.System.err
    try:
        with pytest.raises(KeyboardInterrupt), job_errors():
            raise KeyboardInterrupt
        assert not before.equals(java.lang.System.err)
    finally:
        java.lang.System.setErr(before)
