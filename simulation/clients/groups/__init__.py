"""Groups whose members join, heartbeat, commit and die, and what they are promised."""
