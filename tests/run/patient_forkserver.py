"""Imported by the fork server of ``tests.forks``: it survives a client killed while it asks.

Between a client's connecting and its request, cpython's server raises EOFError and ends; all runs
of the harness share it. It ignores a connection that was aborted.
"""

import errno
from multiprocessing import reduction

_recvfds = reduction.recvfds


def recvfds(sock, size):
    try:
        return _recvfds(sock, size)
    except EOFError as e:
        raise ConnectionAbortedError(errno.ECONNABORTED, "the client was killed") from e


reduction.recvfds = recvfds
