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
# # PD-BERT: pre-trained distillation
#
# Turc et al. 2019, [arXiv 1908.08962](https://arxiv.org/abs/1908.08962), "Well-read students learn better". Three steps
# that were known, in an order that was not tried:
#
# 1. The compact model is pre-trained itself, by masked language modelling from random weights. Nothing is cut out of the
#    large one, so depth and width are free.
# 2. It learns the fine-tuned teacher's probabilities on an *unlabelled* transfer set, without gold labels:
#
#    $$ L = -\sum_c \mathrm{softmax}(z_t)_c\,\log \mathrm{softmax}(z_s)_c . $$
#
# 3. If wanted, it is fine-tuned on the labels.
#
# The paper takes the arms apart: pre-train and distil (PD), pre-train and fine-tune (PF), truncate the large model and
# fine-tune (TF). `study="arms"` runs all three beside the whole recipe, at one token budget on the task.
#
# ## What is done here
#
# | | paper | here |
# |---|---|---|
# | text of step 1 | Wikipedia and BookCorpus | as given by `text`; the notebook's table of the pre-training says how little |
# | student of the comparison | 6 layers, width 768 of 12 | half the layers, the backbone's width; `layers` and `width` for others, heads as wide as the backbone's |
# | transfer set | task-like unlabelled text where there is some | the task's own inputs, or a text (`transfer`) |
# | split of the budget between steps 2 and 3 | none: each to its end | half and half (`distil_share`) |
# | regression | not treated | squared error to the teacher's output |
# | learning rate of compact models | up to 3e-4, far above BERT's | the profile's grid: at `paper` up to 3e-4, above the other methods'; at `glue` the grid of truncation |
#
# Pre-training is what this method lives on, and what a small machine cannot give: expect truncation, which inherits the
# large model's pre-training, to win here and to lose in the paper.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
layers = 0  # of the student; 0: half of the backbone's
width = 0  # hidden size of the student; 0: the backbone's
arm = "pdf"  # pre-train, distil, fine-tune; or pd, pf, tf
transfer = "task"  # transfer set: the task's inputs, or a text
text = "news"  # unlabelled text of the pre-training (lib/text.py)
text_tokens = 100000  # drawn from it
study = "none"  # or arms

# %%
from IPython.display import HTML

from lib import general_plots, parameters, plots, report, runs
from lib.methods import pdbert
from lib.reporting import tables

plots.set_up()
p = parameters.read(pdbert.Config, globals())

# %%
records = []
for q in pdbert.variants(p):
    run = runs.start("pdbert", q)
    student, history = run.compress(pdbert.compress)
    records.append(run.finish(student, history))
record = records[0]

# %% [markdown]
# ## Pre-training of the compact model
#
# Hidden words predicted on text that was held out. At the start the head knows how frequent each word is, and no more.

# %%
general_plots.stage(record)

# %%
general_plots.curves(record)

# %%
general_plots.cost(record)

# %% [markdown]
# ## On the task

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# With `arm="pdf"` the curve is that of distillation first and of fine-tuning after it, each with its own scale of loss.
#
# ## The arms

# %%
plots.runs(records)

# %% [markdown]
# ## The printed numbers
#
# The arms as the paper prints them, 6 layers of width 768 under a BERT-base teacher, and the row that BERT-of-Theseus
# prints beside ours.

# %%
HTML(tables.frame("PD-BERT, Table 3", report.reported_table("pdbert", "Table 3")))

# %%
HTML(report.beside("theseus", "pdbert", "Table 2"))
