"""Memory of this process, in rlrun's environment and in a peer's."""

import os
import resource


def resident() -> int:
    """Bytes of this process in memory."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the most it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
