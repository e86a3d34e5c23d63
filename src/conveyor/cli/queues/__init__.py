"""`conveyor queue`, `conveyor dlq` and `conveyor schedule`: commands for subscriptions, dead letters and schedules."""
