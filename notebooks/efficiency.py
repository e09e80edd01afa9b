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
# # Efficiency
#
# Sizes, operations and speeds need no training: a network with random weights costs what a trained one costs. So the
# systems of all papers stand here at the papers' own shapes, and `model` takes a folder of your own.
#
# **Parameters** are counted from the shapes, tables of embeddings and the pooler apart, because papers differ in what
# they count. **FLOPs** are torch's own count over matrix products; a multiplication and the addition after it are two
# operations (*MACs* are half). For a layer of width $H$ with feed-forward width $F$ over $T$ tokens that is
#
# $$ 2\,T\,(4H^2 + 2HF) + 4\,T^2 H, $$
#
# the last term being the two products of attention. **Latency** is the median over rounds in which every system runs
# once (A B C, A B C, ...), after rounds that are not counted; a speed-up is the median of the ratios *inside* the
# rounds, so that a slow minute of the machine falls on both sides. The quartiles say how far to trust it. Inputs are
# full, without padding. **Load** is the machine's, averaged over the minute before the end of a timing (what `uptime`
# prints): how many threads ran or waited to run, the timing's own included. Above those, other programs took part of the
# processor, and times are longer than on a quiet machine. **Peak memory** is what a model and its first call hold, from
# the kernel's high-water mark.
#
# The back ends: `eager` is attention in elementary operations, `sdpa` torch's fused attention, `compile`
# `torch.compile`, `bf16` fused attention with all weights in bfloat16, `onnx` ONNX Runtime, `onnx-int8` the same after
# dynamic quantisation. ONNX files are checked against PyTorch when they are made. A back end that cannot run here is
# named with the reason.
#
# What the papers print beside what is counted and measured, and the full table, is on the page
# [Sizes and speeds](../efficiency.md).

# %% tags=["parameters"]
model = ""  # your own model: a folder or a Hugging Face id; empty: only the systems below
systems = ["BERT-base", "BERT, 6 layers", "DistilBERT", "TinyBERT4", "MobileBERT-TINY", "EfficientBERT"]
backends = ["eager", "sdpa", "onnx", "onnx-int8"]  # also compile and bf16
lengths = [128]  # tokens
batches = [1]
threads = 0  # 0: as torch chooses
minutes = 1.5  # for timing
rounds = 15  # at most, in each of which every system runs once

# %%
from lib import parameters, plots
from lib.efficiency import notebook as show
from lib.efficiency import run as efficiency_run
from lib.efficiency import table as efficiency_table

plots.set_up()
p = parameters.read(efficiency_run.Config, globals())

# %% [markdown]
# ## Sizes and operations
#
# Counted from the shapes, at batch 1.

# %%
show.sizes(p.systems)

# %% [markdown]
# ## FFN against attention
#
# EfficientBERT searches feed-forward networks because they cost "2 to 3 times" as much as attention. In one BERT-base
# block the ratio of the operations is $8H / (4H + 2T)$ for $F = 4H$: it never exceeds 2 and falls with the length,
# because only attention grows with $T^2$. Time is another matter, and is measured beside it.

# %%
show.block(p)

# %% [markdown]
# ## Latency on this machine

# %%
skips = efficiency_table.Skips({})
table = efficiency_run.time_systems(p, skips)
show.latency(table)

# %%
print(show.load(table))

# %% [markdown]
# What was asked for and is not in the table, with the reason:

# %%
show.missing(p, table, skips)

# %% [markdown]
# The ratio of operations predicts the speed-up only where time goes into large matrix products. Deep thin networks
# (MobileBERT has 24 blocks) spend more of it on everything else.

# %%
show.predicted(table)

# %%
show.curves(table)

# %% [markdown]
# ## Your own model

# %%
show.own(p)
