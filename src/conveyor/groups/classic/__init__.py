"""Groups of the classic protocol (JoinGroup, SyncGroup): members, generations, rebalances.

Not here: members of the consumer protocol in the same group (`groups.migration`).
"""
