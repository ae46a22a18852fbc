"""Why a measurement gives no result."""


class BenchmarkError(Exception):
    """A side did not do the work that it was timed for."""


class UnavailableError(BenchmarkError):
    """This machine lacks what the measurement needs; it is left out, and the report says so."""
