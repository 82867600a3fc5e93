"""The one error that a user's own input can cause."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """A setting, file or device given by the user cannot be used.

    The message is one line that names what was wrong and what would be right. Entry points print
    it and exit with a code that is not 0; it is raised before anything is built or written.
    """
