"""The jobs: what `conveyor pipeline` runs.

Here: DataFrames to DataFrames, and the wiring. Not here: how topics are read and written (`source`), lakes (`lake`).
"""
