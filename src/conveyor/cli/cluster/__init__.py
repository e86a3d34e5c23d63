"""Commands about the cluster: its brokers, leaders, replicas and reassignments, and the changed settings of brokers."""
