"""The ablations of the MobileBERT paper as lists of runs that the notebook goes through.

Each run is a record of its own; its `variant` says what was changed. The plain run is progressive, with both transfers.
"""

from __future__ import annotations

from typing import Literal

from lib import studies
from lib.methods import mobilebert

STUDIES: dict[str, list[dict]] = {
    "none": [{}],
    "strategies": [{}, {"strategy": "joint", "variant": "joint"}, {"strategy": "auxiliary", "variant": "auxiliary"}],
    "transfers": [{}, {"feature_transfer": False, "variant": "no-feature"},
                  {"attention_transfer": False, "variant": "no-attention"}],
    # Table 4: the smaller shape, and without the operational optimisations
    "shapes": [{}, {"tiny": True, "variant": "tiny"},
               {"normalisation": "layer_norm", "activation": "gelu", "variant": "unoptimised"}],
    "code": [{}, {"variant": "code"}],
}


class Config(mobilebert.Config):
    """Parameters of the notebook: one run, or one of the paper's studies."""

    study: Literal["none", "strategies", "transfers", "shapes", "code"] = "none"


def variants(p: Config) -> list[Config]:
    """The runs of a study, each with its variant name."""
    return studies.variants(p, STUDIES[p.study])
