"""APIs for records: Produce, Fetch, offsets of partitions, producers."""
