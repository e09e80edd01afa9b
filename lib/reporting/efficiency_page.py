"""The parts of the efficiency page: printed sizes, operations and speeds beside ours."""

from __future__ import annotations

from markupsafe import Markup

from lib.efficiency import machines, match
from lib.errors import InputError
from lib.reporting import efficiency_bf16 as bf16
from lib.reporting import efficiency_counts as counts
from lib.reporting import efficiency_elsewhere as elsewhere
from lib.reporting import efficiency_parts as parts
from lib.reporting import efficiency_students as students
from lib.reporting import efficiency_times as times
from lib.reporting import training_speed
from lib.reporting.reported import Reported
from lib.reporting.tables import wide


def fragments(reported: list[Reported]) -> dict[str, Markup]:
    """The page's parts by name. Raises `InputError` where sizes.csv cannot be read or a printed number has no shape."""
    sizes, timed = match.sizes(), parts.csv("efficiency.csv")
    measured = None if timed is None else machines.of_one(timed)
    trained, block_flops = parts.csv("students.csv"), parts.csv("blocks.csv")
    if block_flops is None:
        raise InputError("results/blocks.csv is not there; `make sizes` writes it")
    parameters = (*match.PARAMETERS, "params_embedding_m", "params_layers_m", "params_change")
    found = {
        "efficiency-parameters": counts.counted(reported, parameters, "Parameters", sizes),
        "efficiency-ratios": counts.counted(
            reported, ("size_ratio", "memory_ratio"), "Size ratios to BERT-base", sizes),
        "efficiency-flops": counts.constant_surplus(reported, sizes) + counts.counted(
            reported, ("flops_b",), "Operations at 128 tokens", sizes),
        "efficiency-blocks": counts.blocks(block_flops, reported, parts.csv("blocks_time.csv")),
        "efficiency-speed": Markup("").join([
            times.machine(measured, timed), times.timed(measured, sizes), times.faster_than_work(reported, sizes),
            times.speeds(reported, sizes, measured), times.curves(measured), times.whole(measured)]),
        "efficiency-elsewhere": elsewhere.elsewhere([] if timed is None else machines.of_others(timed), sizes),
        "efficiency-bf16": bf16.bf16(parts.csv("bf16.csv")),
        "efficiency-students": students.pareto(trained) + students.students(trained),
        "efficiency-stsb": times.stsb(reported, parts.csv("stsb_pass.csv")),
        "efficiency-shapes": counts.shapes(sizes),
        "efficiency-training": training_speed.training(parts.csv("bench.csv")),
    }
    return {name: wide(part) for name, part in found.items()}
