"""The commands: `conveyor serve`, `topic`, `produce`, `consume`, `pipeline`, `demo`."""
