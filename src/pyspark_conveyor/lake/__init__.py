"""A directory of Parquet files that jobs write, and the checkpoint that belongs to it."""
