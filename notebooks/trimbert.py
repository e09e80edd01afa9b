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
# # TrimBERT
#
# [arXiv 2202.12411](https://arxiv.org/abs/2202.12411). A BERT layer is an attention block and an *intermediate* block
# (two linear maps with a gelu between them, four times as wide inside). The intermediate blocks hold two thirds of a
# layer's weights. TrimBERT keeps all $m$ attention blocks and lets an intermediate block follow only every $n$-th of
# them, $\lfloor m/n \rfloor$ in all: $n = 1$ is BERT, $n = \infty$ has none. Without an intermediate block the next
# attention block takes the output of the one before.
#
# Two further changes, which combine with every $n$:
#
# **BANDD** replaces the softmax over the keys $j$ of a query by a normalisation. With $x_j = q \cdot k_j$, and mean
# $\mu$ and deviation $\sigma$ over the $N$ keys that are not padding,
#
# $$ w_j = g\,\frac{x_j - \mu}{\sigma + \varepsilon} + b, \qquad \varepsilon = 10^{-3}, $$
#
# $g$ and $b$ being trained scalars of each head. The weights may be negative and do not add up to one. A dropout after
# self-attention goes, and the loss of language modelling gains an L2 term in its place.
#
# **NoMLPLN** leaves out the LayerNorm after the intermediate blocks. Leaving out the one after attention instead is
# said to make training diverge.
#
# ## Two experiments that must not be mixed
#
# The paper's claim is about pre-training *from scratch*, with one recipe for all variants: masked words, 900,000 steps
# of 256 sequences of 128 tokens, then fine-tuning. `origin="scratch"` does that at the scale of this machine, with a
# small network; such a run learns little, so what can be compared is one variant with another, not with BERT.
# `origin="backbone"`, the default here, *cuts* the variant out of a pre-trained BERT, heals it by a short stage of
# language modelling, and fine-tunes it. That is another experiment than the paper's.
#
# ## What the paper leaves open
#
# | | said | here |
# |---|---|---|
# | which "dropout after self-attention" | no | the one after the output matrix, by its wording; `removed_dropout` tries the one on the weights |
# | L2 coefficient | no | `l2` = 1e-4 on all weight matrices: a gradient of a few percent of the loss's; with `bandd` the record keeps the term beside the loss |
# | does L2 come beside weight decay? | no | instead of it; `l2_replaces_decay=False` for both |
# | is $1/\sqrt d$ kept? | no | no: the normalisation takes it out again |
# | gain and bias of a head | "the same technique" as its source | yes, started at 1 and 0 as there. The sum over keys is then so large that a network from scratch did not begin to learn in the 2M tokens of our runs; `gain_start` starts it elsewhere, and `study="gain"` tries several |
# | padding | no | masked out of mean and deviation, which are computed in float32 |
# | head of the language model from scratch | no | its bias starts at the log frequencies of the words, for all variants |

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept (for comparison only)
seed = 0
profile = "custom"  # names the folder of the record
every = 2  # n: an intermediate block after every n-th attention block; 0: none
bandd = False
nomlpln = False
origin = "backbone"  # or "scratch"
study = "none"  # or blocks, changes, dropout, gain, layernorm
control_tokens = 0  # tokens of text on which the control without LayerNorm after attention is shown; 0: not shown
timing_tokens = 512  # tokens in a batch of the timing; 0: no timing

# %%
from IPython.display import HTML

from lib import parameters, plots, report, runs
from lib.methods import trimbert_plots, trimbert_studies
from lib.reporting import tables

plots.set_up()
p = parameters.read(trimbert_studies.Config, globals())

# %%
records, broken = trimbert_studies.run_all(p)
record = records[0]

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %% [markdown]
# Masked words on text that was never trained on, before and after the stage of language modelling. From the backbone,
# "before" shows what the cut alone destroys; from scratch it is the frequency of words.

# %%
trimbert_plots.language(records)

# %%
trimbert_plots.loss(trimbert_plots.reports(records, broken))

# %% [markdown]
# A variant that diverges has no score, and a study goes on without it:

# %%
trimbert_plots.diverged(broken) if broken else print("no run diverged")

# %% [markdown]
# Fine-tuning:

# %%
plots.curves(record)

# %% [markdown]
# ## The control: which LayerNorm may go
#
# The same network from scratch, with all intermediate blocks, without one kind of LayerNorm or the other. The paper
# trains twelve blocks for 900,000 steps. Here weights start at a deviation of 0.02 in a narrow network, so a block adds
# little to its input, and a LayerNorm finds what it would make: without it the network computes nearly the same at the
# start. A short run that does not lead away from there shows neither the divergence nor its absence.

# %%
control = trimbert_studies.control(runs.start("trimbert", p)) if p.control_tokens else {}
trimbert_plots.loss(control) if control else print("not run: control_tokens = 0")

# %%
trimbert_plots.control(control) if control else None

# %%
if control:
    print(trimbert_plots.control_says(control))

# %% [markdown]
# ## Sizes at the paper's shape
#
# Twelve attention blocks of width 768, counted from the network built here, pooler included.

# %%
trimbert_plots.sizes()

# %% [markdown]
# ## Throughput by sequence length
#
# The paper's Figure 6 at a tiny scale: two attention blocks of width 256 with random weights, forward pass, on this
# machine. Softmax is one kernel in today's libraries, and attention as a whole another, while a hand-written
# normalisation is a row of elementary operations. So softmax is timed in three ways, and only "written out" compares
# like with like.

# %%
speed = trimbert_plots.speed(p.timing_tokens)
speed if speed is not None else print("not run: timing_tokens = 0")

# %% [markdown]
# ## All runs of this notebook

# %%
plots.runs(records)

# %% [markdown]
# ## The printed numbers
#
# What the text of the paper states; no table of scores by task was at hand. Speed was measured on a GPU that is not
# named.

# %%
HTML(tables.frame("TrimBERT, results in the text", report.reported_table("trimbert", "Results text")))

# %%
HTML(tables.frame("TrimBERT, Fig. 6", report.reported_table("trimbert", "Fig. 6")))
