"""What the tables of the efficiency page share."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from lib.efficiency import match
from lib.errors import InputError
from lib.paths import ROOT, results_dir
from lib.reporting.reported import Reported
from lib.reporting.tables import flag, lines, small

NOT_YET = Markup('<span class="bc-none">not measured yet</span>')
TITLES = {"params_m": "parameters, million", "params_m_without_projection": "parameters, million",
          "params_embedding_m": "parameters of embeddings, million",
          "params_layers_m": "parameters of layers, million",
          "params_change": "change of parameters, percent", "flops_b": "FLOPs, 10⁹", "size_ratio": "times smaller",
          "memory_ratio": "times smaller in memory", "speedup": "times faster",
          "throughput_ratio": "times the throughput",
          "latency_ms": "times faster, from the printed latencies"}  # fmt: skip


def csv(name: str) -> pd.DataFrame | None:
    """A table of the results, or of the repository's own results where there is none; None where neither is."""
    for folder in (results_dir(), ROOT / "results"):
        if (folder / name).exists():
            try:
                return pd.read_csv(folder / name)
            except (OSError, ValueError) as e:
                raise InputError(f"{folder / name}: cannot be read ({e})") from e
    return None


def rows(reported: list[Reported], metrics: tuple[str, ...]) -> list[Reported]:
    """Printed numbers of these metrics that belong to one of our shapes; no other is passed over in silence."""
    found = [r for r in reported if r.metric in metrics and (r.paper, r.system) not in match.NOT_OURS]
    unknown = [f"{r.paper} {r.system}" for r in found if (r.paper, r.system) not in match.OURS]
    if unknown:
        raise InputError(f"lib/efficiency/match.py: no shape for the printed {', '.join(sorted(set(unknown)))}")
    return found


def system(r: Reported) -> Markup | str:
    ours = match.OURS[r.paper, r.system]
    name = r.system if r.verified else lines(r.system, flag("unverified"))
    return name if ours == r.system else lines(name, small(f"our shape: {ours}"))
