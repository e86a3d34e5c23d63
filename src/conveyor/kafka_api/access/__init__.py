"""Keeps from the handlers what a client has no right to: what requests name, who may, and how a refusal is answered."""
