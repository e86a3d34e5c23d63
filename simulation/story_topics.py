"""The topics of a story that most actors know."""

LOG_TOPIC, TABLE_TOPIC, QUEUE_TOPIC, DELAY_TOPIC = "log", "table", "work", "later"
DUE_TOPIC = "due"
"""The target of DELAY_TOPIC."""
SUBSCRIPTION = "workers"
"""The subscription to QUEUE_TOPIC."""
PARTITIONS = 2
"""The partitions of each topic, unless a story says otherwise."""
