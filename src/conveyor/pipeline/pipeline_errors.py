"""What can go wrong in a pipeline, in one line each."""


class PipelineError(Exception):
    """A job could not be done; the message says why and what to do."""


class DataLossError(PipelineError):
    """Records that were to be read are not there any more."""
