"""Peak memory of a call on Linux: the kernel's own high-water mark of the process, set back before the call."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def _status(field: str) -> float:
    """A field of /proc/self/status (VmRSS, VmHWM) in MB (10**6 bytes)."""
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def resident() -> float:
    """Memory that the process holds now, in MB, after everything free is given back to the system.

    Collect garbage first where there may be some: it is too slow to do here every time.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def peak(call: Callable[[], object]) -> float | None:
    """Highest resident memory of the process while `call` runs, in MB; None where the system does not tell.

    All that the process holds counts; take `resident()` before the model is built away from it.
    """
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # sets VmHWM back to VmRSS (man 5 proc)
    except OSError:
        return None
    call()
    return _status("VmHWM")
