"""Groups of the consumer protocol (KIP-848): members, epochs, server-side assignment.

Not here: members of the classic protocol in the same group (`groups.migration`).
"""
