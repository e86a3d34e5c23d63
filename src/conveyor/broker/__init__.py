"""What a broker does, whichever door asks: publish, fetch, administer, coordinate groups."""
