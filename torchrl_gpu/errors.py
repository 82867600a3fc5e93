"""Errors: invalid user input, exceptions of user code in another process, and exit codes."""

FAILED, REFUSED = 1, 2
INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended
START_AGAIN = 75  # EX_TEMPFAIL of sysexits.h, after a signal of a scheduler


class ConfigurationError(ValueError):
    """A setting, file or device given by the user cannot be used.

    The message is one line that names the invalid input and the valid alternatives. Entry points
    print it and exit with a nonzero code; it is raised before anything is built or written.
    """


class WorkerError(RuntimeError):
    """An exception of an environment in a worker process, or a process that cannot be replaced.

    The text is its heading, as in `ValueError in my_robots/env.py`, and below it its traceback in
    that process, without the frames of the program; or one line about the process.
    """


def one_line(error: Exception | str) -> str:
    """Return the message of an error, or another text, without line breaks."""
    return " ".join(str(error).split())
