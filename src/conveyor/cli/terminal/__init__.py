"""Code that commands share: clients, tables, progress bars, positions in a log."""
