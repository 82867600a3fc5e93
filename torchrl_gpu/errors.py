"""The error raised for invalid user input."""


class ConfigurationError(ValueError):
    """A setting, file or device given by the user cannot be used.

    The message is one line that names the invalid input and the valid alternatives. Entry points
    print it and exit with a nonzero code; it is raised before anything is built or written.
    """


def one_line(error: Exception | str) -> str:
    """Return the message of an error, or another text, without line breaks."""
    return " ".join(str(error).split())
