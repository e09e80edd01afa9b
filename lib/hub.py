"""Whether the Hugging Face hub answers, found out in seconds.

The hub's clients try again and again with growing waits: for one missing model they took almost three minutes to say
that there is no network.
"""

from __future__ import annotations

import functools
import sys
import urllib.error
import urllib.request

import datasets
from huggingface_hub import constants

SECONDS = 10


@functools.cache
def reachable() -> bool:
    """Whether the hub answers. Where it does not, its clients are told to use their caches only, in this process."""
    if constants.is_offline_mode():  # HF_HUB_OFFLINE=1
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=SECONDS).close()
    except urllib.error.HTTPError:  # an answer, if an unkind one
        return True
    except (OSError, ValueError) as e:
        print(f"{constants.ENDPOINT} does not answer ({e}); only what is cached here can be used", file=sys.stderr)
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        return False
    return True
