"""The address of the viewer, and the checks before anything is built."""

import errno
import os
import socket
from importlib.util import find_spec

from torchrl_gpu.errors import ConfigurationError


def check_address(host: str, port: int) -> None:
    """Refuse `viewer=web` where its package is missing, or its host or port cannot be had."""
    if find_spec("viser") is None:
        raise ConfigurationError(
            'viewer=web: viser is not installed; run pip install "torchrl-gpu[viewer]"'
        )
    free_port(host, port)


def free_port(host: str, port: int) -> int:
    """Return the number of a port that can be listened on: the given one, or any if it is 0."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(f"viewer_host={host}: {error.strerror}") from None
    family, kind, protocol, _, address = min(found)  # IPv4 first
    with socket.socket(family, kind, protocol) as listener:
        if os.name == "posix":  # as asyncio does
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigurationError(
                    f"viewer_host={host}: not an address of this machine"
                ) from None
            raise ConfigurationError(
                f"viewer_port={port}: cannot listen on {host}: {error.strerror}; choose another "
                "port, or viewer_port=0 for a free one"
            ) from None
        return int(listener.getsockname()[1])
