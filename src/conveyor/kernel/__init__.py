"""The lowest layer: ids and units, errors, ports, the state machine contract, alarms.

Here: definitions that every package may use. Not here: settings (`settings`), the bytes of records (`records`), any
input or output.
"""
