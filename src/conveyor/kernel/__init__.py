"""Ids and units, errors, settings, and the ports through which the core meets disk, time and metadata."""
