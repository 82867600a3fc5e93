"""Errors: invalid user input, exceptions of user code in another process, and exit codes."""

FAILED, REFUSED = 1, 2
INTERRUPTED = 130  # as a shell reports a program that Ctrl-C ended
START_AGAIN = 75  # EX_TEMPFAIL of sysexits.h, after a signal of a scheduler

# A file may hold names and values of any length.
_LONGEST = 1000


class ConfigurationError(ValueError):
    """A setting, file or device given by the user cannot be used.

    The message is one line that names the invalid input and the valid alternatives. Entry points
    print it and exit with a nonzero code; it is raised before anything is built or written. It is
    shown without line breaks and control characters, and without its middle where it exceeds 1,000
    characters.
    """

    def __init__(self, message: object) -> None:
        line = shortened(str(message), _LONGEST)
        if not line.isprintable():
            escaped = (c if c.isprintable() else ascii(c)[1:-1] for c in one_line(line))
            line = shortened("".join(escaped), _LONGEST)
        super().__init__(line)


class WorkerError(RuntimeError):
    """An exception of an environment in a worker process, or a process that cannot be replaced.

    The text is its heading, as in `ValueError in my_robots/env.py`, and below it its traceback in
    that process, without the frames of the program; or one line about the process.
    """


class ProcessLostError(WorkerError):
    """Another process of the run has ended, or does not answer."""


def one_line(error: BaseException | str) -> str:
    """Return the message of an error, or another text, without line breaks."""
    return " ".join(str(error).split())


def shortened(text: str, length: int = 100) -> str:
    """Return a text of at most `length` characters, whose middle is left out if it is longer."""
    half = (length - 5) // 2
    return text if len(text) <= length else f"{text[:half]} ... {text[-half:]}"
