"""Plots and tables of the notebooks: words for who cannot see a figure, cells that are whole, digits that tell."""

from __future__ import annotations

import matplotlib
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from synthetic_records import record

from lib import general_plots, plots
from lib.efficiency import notebook as efficiency_notebook
from lib.methods import efficientbert_studies, trimbert_plots

CURVE = {"loss": [[1, 0.7], [100, 0.5]], "held_out": [[50, 61.0], [100, 64.25]], "hard": [[1, 0.6], [100, 0.004]]}


@pytest.fixture
def shell():
    """An interactive shell as a notebook has it, set up; afterwards everything is as before."""
    before, width = matplotlib.get_backend(), pd.get_option("display.max_colwidth")
    found = InteractiveShell.instance()
    plots.set_up()
    yield found
    InteractiveShell.clear_instance()
    pd.set_option("display.max_colwidth", width)
    plt.switch_backend(before)


def shown(shell, thing) -> dict:
    data, _ = shell.display_formatter.format(thing)
    return data


def test_a_figure_is_shown_with_its_words(shell):
    first, second = (plots.curve(record(curve=CURVE), name, name) for name in ("loss", "held_out"))
    pictures = [BeautifulSoup(shown(shell, f)["text/html"], "html.parser").svg for f in (first, second)]
    assert [p["role"] for p in pictures] == ["img", "img"]
    assert pictures[0]["aria-label"] == "Against optimiser steps, loss: 0.7 at step 1, 0.5 at step 100."
    inside = [{tag["id"] for tag in p.find_all(id=True)} for p in pictures]
    assert inside[0]
    assert not inside[0] & inside[1]  # both stand on one page


def test_a_figure_of_the_readers_own_is_an_image(shell):
    figure, _ = plt.subplots()
    plt.close(figure)
    data = shown(shell, figure)
    assert "text/html" not in data
    assert data["image/svg+xml"].lstrip().startswith("<?xml")
    assert "inline" in matplotlib.get_backend()  # a cell with plt.plot() shows its figure


def test_cells_of_a_table_are_whole(shell):
    words = "scaled down: backbone minilm-l6, at most 80,000 tokens, 3 epochs at most, and so on and so forth"
    assert words in shown(shell, plots.summary(record(scale=words)))["text/html"]
    assert words in shown(shell, plots.runs([record(scale=words)]))["text/html"]


def mlm(*, after=6.5, diverged=None):
    return {"curve": {"loss": [[1, 7.0], [9, after]]}, "diverged": diverged, "steps": 9, "before": {"loss": 7.0},
            "after": {"loss": after}, "layernorms": 13}


def test_the_control_says_what_it_can_be_read_for():
    alike = {"n = 1": mlm(after=6.5), "a": mlm(after=6.5003), "b": mlm(after=6.4999)}
    assert "within 0.00040 of each other; the largest fall was 0.50010" in trimbert_plots.control_says(alike)
    assert "no evidence for the paper and none against it" in trimbert_plots.control_says(alike)
    assert "They are apart" in trimbert_plots.control_says(alike | {"b": mlm(after=6.6)})
    assert trimbert_plots.control_says(alike | {"b": mlm(diverged="loss is not finite")}).endswith("finite loss: b.")
    assert trimbert_plots.control(alike)["after"].tolist() == ["6.50000", "6.50030", "6.49990"]


def timings():
    rows = [{"system": s, "backend": "eager", "batch": 1, "length": n, "latency_ms": n / 2, "latency_iqr_ms": 0.5}
            for s in ("BERT-base", "TinyBERT4") for n in (32, 128)]
    return pd.DataFrame(rows)


def searched():
    rows = [{"stage": s, "how": how, "score": v} for s, how, v in ((1, "start", 50.0), (1, "mutation", 62.5),
                                                                   (2, "best leaf", 61.0))]
    return record("efficientbert", study={"search": rows})


@pytest.mark.parametrize(("draw", "words"), [
    (lambda: plots.curves(record(curve=CURVE)), ["0.7 at step 1, 0.5 at step 100", "64.25 at step 100", "step 10 is"]),
    (lambda: plots.terms(record(curve=CURVE), {"hard": ("labels", 0.5)}), ["labels, times 0.5: 0.3 at step 1"]),
    (lambda: general_plots.curves(record(study={"general": {"curve": {"loss": [[1, 9.0], [4, 8.0]]}}})),
     ["weighted sum: 9 at step 1, 8 at step 4"]),
    (lambda: trimbert_plots.loss({"n = 1": mlm(), "other": mlm(diverged="nan")}),
     ["n = 1: 7 at step 1, 6.5 at step 9", "other (diverged): "]),
    (lambda: efficientbert_studies.search_plot(searched()), ["stage 1: 2 candidates, best 62.5", "stage 2: 1 cand"]),
    (lambda: efficiency_notebook.curves(timings()), ["eager, batch 1", "TinyBERT4: 16 ms at 32 tokens, 64 ms at 128"]),
])
def test_every_figure_has_words_that_say_what_it_shows(draw, words):
    figure = draw()
    assert isinstance(figure, Figure)
    assert not plt.get_fignums()  # an open one would be drawn a second time
    for w in words:
        assert w in figure.get_label()


def test_what_a_run_does_not_have_is_said():
    assert plots.curve(record(), "layers_run", "layers run") == "This run has no curve of this: layers run."
    assert general_plots.curves(record()) == "This run has no curve of a general stage."


def test_small_runs_keep_the_digits_that_are_compared():
    small = {"as run": {"patience": 0.00012344, "loss": 0.561712, "tokens a second": 12345.6},
             "last": {"patience": 0.00023456, "loss": 5.541249, "tokens a second": 127.8402}}
    table = plots.compared(record(study={"compared": small}))
    assert table["patience"].tolist() == ["0.0001234", "0.0002346"]
    assert table["loss"].tolist() == ["0.5617", "5.541"]
    assert table["tokens a second"].tolist() == ["12,346", "127.8"]
    assert plots.compared(record()).startswith("Not run")


def test_a_summary_says_what_was_not_kept_and_names_no_teacher_where_there_is_none():
    best = "best checkpoint on that split (optimistic, the papers' way), percent"
    student = plots.summary(record(teacher=80.0, best_on_scored_split=None))["value"]
    assert student[best] == "not kept (score_curve is off)"
    assert student["teacher, percent"] == "80.0"
    assert plots.summary(record(best_on_scored_split=71.25))["value"][best] == "71.2"
    teacher = plots.summary(record("bert", best_on_scored_split=None))
    assert "not defined" not in teacher.to_string()
    assert not [line for line in teacher.index if "teacher" in line or "retention" in line or "loyalty" in line]
