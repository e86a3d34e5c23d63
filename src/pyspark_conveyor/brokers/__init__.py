"""Connects the pipeline to brokers, and checks the values of options that readers and writers share."""
