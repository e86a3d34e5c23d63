"""The demonstration's data: real flights as records, the checks of the lake, and the report."""
