"""Payloads as typed columns: schemas, and decoders for JSON, Avro and Protobuf.

Here: one file per format, and the function that adds the columns. Not here: which lake has which schema (`lake`).
"""
