"""What `spark_session` does for sessions on this machine."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_python_processes_use_the_installed_package(spark: "SparkSession") -> None:
    """Not `pyspark.zip`, which they would compile again."""

    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    import pyspark

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]
