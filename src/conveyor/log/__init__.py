"""The log of one partition: appends, reads and offsets. The rooms hold its files and their upkeep.

Here: `Log`, its tail, start and flushes, and reading batches. Not here: leadership of the partition and waiting
requests (`replication`), and the schedule of flushes, retention and compaction (`broker.partitions`). All file access
goes through the `Disk` port.
"""
