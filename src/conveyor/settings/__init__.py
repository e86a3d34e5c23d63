"""The settings of a broker and of its topics: one frozen tree, how it is loaded, and how it is described.

Here: every setting with its default, unit, sentence and names, and the sources that fill the tree. Not here:
settings that clients change at run time (`cluster.dynamic_config`, `broker.metadata`).
"""
