"""The error of this payload."""


class TrainingError(Exception):
    """There is no figure of merit; the message says why and goes to output.json."""
