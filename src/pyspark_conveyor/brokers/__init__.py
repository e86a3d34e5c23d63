"""How the pipeline talks to brokers, and the values of options that readers and writers share."""
