"""Keeps from the handlers what a client has no right to: what requests name, who may, and how a refusal is answered.

Not here: the rights that each API needs (`wire.versions`), and the decision (`broker.clients`).
"""
