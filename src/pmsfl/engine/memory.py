"""The host's allocator, told to keep what it has."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for them in malloc.h, M_...


def keep_freed_memory() -> None:
    """Let freed tensors' memory be used again instead of going back to the system; does nothing without glibc.

    A cohort's activations are megabytes each, which glibc gives back when they are freed and asks for, page by page,
    in the next step: a tenth of a step went there.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
        mallopt(_TRIM_THRESHOLD, 1 << 30)
