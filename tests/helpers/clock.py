"""Time that passes on demand alone."""


class Clock:
    """Stands in for the module `time`, or for one of its functions, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def perf_counter(self) -> float:
        return self.now

    __call__ = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds
