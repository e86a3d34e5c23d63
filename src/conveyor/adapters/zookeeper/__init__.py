"""The metadata store on ZooKeeper: its address, the session that kazoo keeps, and how a commit becomes one transaction.

Only this room imports kazoo, and nothing imports this room unless the settings name a ZooKeeper.
"""
