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
# # LayerDrop
#
# Fan et al. 2020, [arXiv 1909.11556](https://arxiv.org/abs/1909.11556). Dropout of whole layers: in each forward pass
# a number is drawn for every layer $l$ of the $N$ layers, and the layer runs only if the number exceeds the drop rate
# $p$:
#
# $$ u_l \sim \mathrm{Uniform}(0, 1), \qquad h_{l} = \begin{cases} \mathrm{layer}_l(h_{l-1}) & u_l > p \\
# h_{l-1} & \text{else.} \end{cases} $$
#
# Nothing is rescaled. A network trained so does without some of its layers, and a smaller one can be cut out of it
# afterwards without a teacher. For a student of $r$ layers the paper derives $p^* = 1 - r/N$ (one half, for half the
# depth); its own pre-training took 0.2, to serve several depths at once. To remove the share $q$ of the layers it drops
# each layer $l$ with
#
# $$ l \bmod \lfloor 1/q \rfloor = 0, $$
#
# "every other" for $q = 1/2$; a search over sets of layers on held-out data was hardly better.
#
# BERT-of-Theseus prints a row "LayerDrop" (Table 2): BERT's weights fine-tuned with LayerDrop, then pruned. That is not
# what the LayerDrop paper does, which pre-trains with it, prunes, and fine-tunes the small model without it; its
# repository answers that adding LayerDrop to fine-tuning alone does not work well. Both ways are here.
#
# ## What the sources leave open
#
# | | said | here |
# |---|---|---|
# | rate of the Theseus row | no | $p^* = 1 - r/N$; `drop_rate` sets another, `study="rate"` compares |
# | is the lowest layer 0 or 1? | no | 0: of six layers the 2nd, 4th and 6th stay, with the last, which the head reads; `counting="one"` for the other |
# | $q > 1/2$ (12 layers to 3) | the rule as printed removes all | its mirror image: $l \bmod k = k-1$ stays, $k = \lfloor 1/(1-q) \rfloor$ |
# | fine-tuning after pruning, in the Theseus row | no | none; `recovery_share` gives it a share of the budget |
# | a layer that a batch did not run | no | does not move: it has no gradient, and Adam passes over it |
# | which state is kept | no | the last within one standard error of the best on held-out rows, scored *with the layers that will stay* |

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept (for comparison only)
seed = 0
profile = "custom"  # names the folder of the record
layers = 0  # of the student; 0: half of the backbone's
drop_rate = -1  # p; negative: 1 - r/N
when = "finetuning"  # or "pretraining": language modelling with LayerDrop, pruning, plain fine-tuning
pruning = "every_other"  # or "search"
study = "none"  # or rate, pruning, place

# %%
from IPython.display import HTML

from lib import parameters, plots, report, runs
from lib.methods import layerdrop, layerdrop_plots
from lib.reporting import tables

plots.set_up()
p = parameters.read(layerdrop.Config, globals())

# %%
records = []
for q in layerdrop.variants(p):
    run = runs.start("layerdrop", q)
    student, history = run.compress(layerdrop.compress)
    records.append(run.finish(student, history))
record = records[0]

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# ## Which layers can go
#
# One trained network, pruned in several ways and scored on the held-out rows, before any further training. The lowest
# layers are what truncation would keep; they are the control.

# %%
layerdrop_plots.pruning(record)

# %% [markdown]
# How many layers ran in a training step, on average over a hundredth of the steps:

# %%
plots.curve(record, "layers_run", "layers run in a step")

# %% [markdown]
# ## All runs of this notebook

# %%
plots.runs(records)

# %% [markdown]
# ## The printed numbers beside ours
#
# The row that BERT-of-Theseus prints, Table 2: 6 of 12 layers of BERT-base on the development sets. Where ours is scaled
# down the cell says so and compares what is retained of the teacher.

# %%
HTML(report.beside("theseus", "layerdrop", "Table 2"))

# %% [markdown]
# The LayerDrop paper's own small models, pruned after pre-training with LayerDrop and then fine-tuned. Their backbone is
# RoBERTa, so they are set beside nothing here.

# %%
HTML(tables.frame("LayerDrop, Table 7, dev", report.reported_table("layerdrop", "Table 7")))
