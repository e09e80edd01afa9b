"""Started runs of TinyBERT with a text of their own. Helpers of the tests; nothing here is a result."""

from __future__ import annotations

import numpy as np
import tiny
from method_runs import start

from lib import runs
from lib.methods.tinybert import Config

TEXT = {"text_tokens": 2000, "text_length": 32, "head_epochs": 0.2, "general_epochs": 1}


def started(places, **values) -> runs.Run:
    """A run on made-up rows; `places` is the fixture of that name."""
    own = places / "prose.txt"
    if not own.exists():
        rng, words = np.random.default_rng(0), [w for w in tiny.VOCABULARY if w.isalpha() and len(w) > 2]
        own.write_text("\n\n".join(" ".join(rng.choice(words, 40)) for _ in range(800)))
    return start("tinybert", Config, places, **{"text": str(own), **TEXT, **values})


def batch_of(n: int = 3) -> dict:
    """A batch of made-up rows of unlike lengths."""
    return tiny.encoded(n, seed=3).batch(np.arange(n))
