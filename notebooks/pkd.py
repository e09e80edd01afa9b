# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # BERT-PKD: patient knowledge distillation
#
# Sun et al. 2019, [arXiv 1908.09355](https://arxiv.org/abs/1908.09355). [Vanilla KD](kd.ipynb) shows the student only
# where the teacher ends up. Here it also sees how the teacher gets there: the state of the first token, from which the
# class is read in the end, is compared in every layer of the student but the last. Student layer $j$ of $k$ looks at
# teacher layer $I(j)$ of $N$:
#
# $$ \text{Skip: } I(j) = \lfloor j N / k \rfloor, \qquad \text{Last: } I(j) = N - k + j, \qquad j = 1, \dots, k-1. $$
#
# For 12 and 6 layers Skip is 2, 4, 6, 8, 10 and Last is 7 to 11; for 6 and 3 they are 2, 4 and 4, 5. Each state $h$ is
# divided by its length, so that only its direction counts, and the squared distances are added to the loss of vanilla
# KD:
#
# $$ L = (1-\alpha)\,L_{CE} + \alpha\,L_{KD} + \beta\,L_{PT}, \qquad
#    L_{PT} = \sum_{j=1}^{k-1} \Big\| \frac{h^S_j}{\|h^S_j\|} - \frac{h^T_{I(j)}}{\|h^T_{I(j)}\|} \Big\|^2. $$
#
# The last layer is left out because the logits already speak for it. Student and teacher must be equally wide: the
# states are compared as they are.
#
# ## What the paper says, what its code does, what is done here
#
# | | paper | official code | here |
# |---|---|---|---|
# | $L_{PT}$ of a row | sum over layers and components | mean over layers and components, smaller by their number (3840 for 5 layers of 768) | the code's mean; the sum with `variant="paper"` |
# | $L_{KD}$ | mean over the batch | mean over batch and classes | mean over the batch, as in vanilla KD; the code's with `variant="code"` |
# | $\beta$ | 10, 100, 500, 1000 | 1 to 1000; 100 most often best | 100 |
# | $\alpha$, $T$ | 0.2, 0.5, 0.7 and 5, 10, 20 | the same; 0.5 and 10 for MNLI and SST-2 | 0.5 and 10 |
# | normalised states | always | a switch; off in the best runs on MNLI, QNLI and QQP | on; `normalise=False` switches it off, and then another $\beta$ fits |
# | mapping of a 3-layer student | Skip and Last | its script always passes Last | both, for any depths |
# | teacher's outputs | not said | computed once beforehand, without dropout | the same: logits and one state a layer kept as an artefact |
# | order of the rows | not said | order of the file | shuffled, rows of like length together |
# | regression | not said | not in the code: cross-entropy only | as in vanilla KD: squared errors to label and teacher's output |
#
# **Why this default.** The printed $\beta$ belongs to the mean: with the sum, $\beta = 100$ makes the states
# by far the largest term of the loss (the notebook's table of small runs shows the terms). The mean over components also
# divides by the width, so on a backbone of width 384 the same $\beta$ weighs a squared distance as twice that $\beta$
# would at the paper's 768; 100 stays inside the grid either way. For the logits the formula's mean over the batch is kept, so that $\beta = 0$ is
# exactly vanilla KD and the difference between the two methods is $L_{PT}$ alone.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
variant = ""  # "", "paper" or "code"
layers = 0  # of the student; 0: half of the backbone's
mapping = "skip"  # or last
alpha = 0.5  # weight of the teacher's logits; 1 - alpha is that of the labels
temperature = 10  # T
beta = 100  # weight of the patience loss
normalise = True  # divide states by their length
cache = True  # ask the teacher once and keep its answers
gain_steps = 0  # steps timed with and without the cache; 0: not measured
comparison_tokens = 0  # tokens of each small run that compares variants; 0: none is made

# %%
from IPython.display import HTML

from lib import parameters, plots, report, runs
from lib.methods import kd, pkd
from lib.reporting import tables

plots.set_up()
p = parameters.read(pkd.Config, globals())
print(f"student layers 1 to {kd.student_depth(p) - 1} look at teacher layers {pkd.plan(p)}")

# %%
run = runs.start("pkd", p)
student, history = run.compress(pkd.compress)

# %%
study = {}
if p.gain_steps:
    study["caching_gain"] = pkd.caching_gain(run, run.teacher().model)
if p.comparison_tokens:
    study["compared"] = pkd.compare(run, run.teacher().model)
run.study = study or None
record = run.finish(student, history)

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# The three terms of the loss as they enter it:

# %%
plots.terms(record, {"hard": ("labels", 1 - p.alpha), "soft": ("teacher's logits", p.alpha),
                     "patience": ("teacher's states", p.beta)})

# %% [markdown]
# ## What keeping the teacher's answers gains
#
# Kept are the logits and the first-token state of each layer, never whole hidden states. Timed in one process, on the
# same batches, both ways in turn. Filling the cache is one pass of the teacher over the rows; each visit of a
# row after the first gains the difference. A run that sees every row once, as the short demo does, gains nothing: the
# last line counts that.

# %%
plots.caching_gain(record)

# %% [markdown]
# ## What each choice does
#
# Small runs with the same start and the same batches: too short to say which choice is best (the demo's end before
# much is learnt). "patience" is $L_{PT}$ as the variant reduces it, before $\beta$; "loss" is the whole loss, so that
# one can see what part of it is left for labels and logits.

# %%
plots.compared(record)

# %% [markdown]
# ## The printed numbers beside ours
#
# BERT-of-Theseus, Table 2: 6 of 12 layers of BERT-base on the development sets. Where ours is scaled down the cell says
# so and compares what is retained of the teacher.

# %%
HTML(report.beside("theseus", "pkd", "Table 2"))

# %% [markdown]
# Reductions and mappings in whole runs, where they were made (`variant="paper"`, `variant="code"`, or
# `mapping="last", variant="last"`):

# %%
HTML(report.variants_beside("theseus", "Table 2", {"pkd": "BERT-PKD", "pkd-paper": None, "pkd-code": None,
                                                   "pkd-last": None}, title="BERT-PKD, variants"))

# %% [markdown]
# The paper's Table 1 was scored by the GLUE server on the test sets, whose labels are not public, so ours has no place
# beside it:

# %%
HTML(tables.frame("BERT-PKD, Table 1, test", report.reported_table("pkd", "PKD Table 1")))

# %% [markdown]
# Skip and Last on the development sets, from the result files of the official repository (best setting each, mean over
# repeats; not a table of the paper):

# %%
HTML(tables.frame("official results, dev", report.reported_table("pkd", "official repository result summary")))
