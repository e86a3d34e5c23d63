"""Commands about the cluster as a whole: its brokers, leaders and replicas."""
