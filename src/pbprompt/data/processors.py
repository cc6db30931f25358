"""How many processors there are to share out."""

import os


def available_cpus() -> int:
    """The processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
