"""The endpoints of the REST API, one file for each noun."""
