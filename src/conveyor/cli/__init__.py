"""The commands: `conveyor serve`, `produce`, `consume`, `topic`, `group`, `settings`, `pipeline`, `demo`."""
