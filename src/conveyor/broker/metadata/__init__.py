"""The cluster as this broker sees it, and changes to it: image, subscriptions, run-time settings, producer ids; this
broker's registration, and the controller.

Here: the only code that uses the metadata store. Not here: applying changes to this broker's partitions
(`broker.partitions`).
"""
