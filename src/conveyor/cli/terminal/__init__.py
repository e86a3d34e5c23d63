"""What commands share: clients, tables, progress bars, positions in a log. No command lives here."""
