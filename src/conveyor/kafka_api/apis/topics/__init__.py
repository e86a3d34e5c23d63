"""APIs for topics: metadata, creation, additional partitions, deletion, description."""
