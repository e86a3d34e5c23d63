"""The endpoints for operators: health and metrics."""
