"""HTTP: health and metrics endpoints. REST, SQS and the console follow."""
