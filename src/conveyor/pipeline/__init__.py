"""The PySpark data source `format("conveyor")`, and the jobs that use it. A client like any other."""
