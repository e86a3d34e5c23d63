"""Transactions: the requests of transactional producers to their coordinator."""
