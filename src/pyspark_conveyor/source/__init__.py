"""Reads topics as a Spark table or stream: `format("conveyor")`."""
