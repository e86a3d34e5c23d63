"""The features of the cluster (KIP-584). The only one is the version of transactions.

All brokers have it, so it is always at its newest version.
"""

from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION

TRANSACTION_VERSION = "transaction.version"
OLDEST_LEVEL, LEVEL = 0, EPOCH_BUMPING_VERSION
"""The levels that clients know, and the one in force."""
