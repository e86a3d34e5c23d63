"""The failures of a pipeline, each with a message of one line."""


class PipelineError(Exception):
    """A job failed; the message says why and what to do."""


class DataLossError(PipelineError):
    """Records to read no longer exist."""
