"""APIs for the cluster as a whole: versions, brokers, log directories, elections, reassignments, access rules."""
