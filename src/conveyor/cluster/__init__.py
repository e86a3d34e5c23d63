"""The metadata image that every broker holds, and decisions as pure functions of it."""
