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
# # MobileBERT
#
# Sun et al. 2020, [arXiv 2004.02984](https://arxiv.org/abs/2004.02984). Most students are shallow. This one is as deep
# as its teacher and *thin*: each block squeezes its input through a bottleneck, works at the narrow width, and widens
# its output again. Thin and deep is hard to train, so a teacher of the same frame is built first: the *IB teacher*, a
# BERT with inverted bottlenecks, narrow between its blocks and wide inside them. Teacher and student then have the same
# number of blocks and heads and the same width between blocks, and can be compared block by block with no projection.
#
# A block of the student, with input $x$ of the width between blocks and NoNorm instead of LayerNorm:
#
# 1. $b$ and $k$ are two linear bottlenecks of $x$. Keys and queries come from $k$, values from $x$ itself.
# 2. $a = \mathrm{NoNorm}(W\,\mathrm{attention} + b)$.
# 3. Four feed-forward networks one after the other, so that attention holds 0.4 to 0.6 times the parameters of the
#    feed-forward part, the paper's rule (0.47 at its widths).
# 4. $y = \mathrm{NoNorm}(W' a + x)$, where $\mathrm{NoNorm}(h) = \gamma \circ h + \beta$ has no statistics.
#
# A word's vector is narrow, too: the vectors of the next, the current and the previous token go through one linear
# layer together.
#
# Three things are learned on unlabelled text. With the block outputs $H$ and the attention rows $A$ of teacher and
# student, for block $\ell$, over real tokens only,
#
# $$ L_\mathrm{FMT}^\ell = \mathrm{mean}\,(H^\ell_T - H^\ell_S)^2, \qquad
#    L_\mathrm{AT}^\ell = \mathrm{mean}_{\text{heads, tokens}}\;\mathrm{KL}(A^\ell_T \,\|\, A^\ell_S), $$
#
# and on the masked words, with the teacher's distribution as a soft target,
#
# $$ L_\mathrm{PD} = \alpha\,L_\mathrm{MLM} + (1 - \alpha)\,L_\mathrm{KD}. $$
#
# *Auxiliary* transfer sums everything; *joint* transfer learns all blocks at once and then the words; *progressive*
# transfer learns one block after the other, what lies below at a tenth of the rate, and then the words. The result is
# an ordinary small encoder: it is fine-tuned on the task by its labels alone, and the task's teacher takes no part.
#
# ## What the paper leaves open, and where its code differs
#
# | | paper | official code | here |
# |---|---|---|---|
# | feature maps | plain mean squared difference | LayerNormed maps, factor 100, and differences of each token's mean (5000) and variance (5) | the paper's; the code's with `variant="code"` |
# | optimiser | LAMB | LAMB | AdamW, as everywhere in this study |
# | rate of lower blocks | not frozen, smaller | times 0.1 | times 0.1: each step is taken back by nine tenths (a smaller gradient would not do, Adam divides by its size) |
# | embeddings and output layer in the transfer | not said | stand still | stand still |
# | rate of the transfer | not said | three times that of the distillation, warmed up over the first tenth of each block's steps, then constant | `transfer_lr`, warmed up alike, then constant; the optimiser's state is new for each block |
# | weight between the two transfer losses | not said | 100 for LayerNormed maps, 1 for attention | 1 and 1; the code's with `variant="code"`, without its division by the number of blocks |
# | next-sentence loss | part of $L_\mathrm{PD}$ | on labels only | left out: the texts hold no pairs |
# | the student's start | not said | embeddings and output layer of the teacher, blocks at random | as in the code; NoNorm of the embeddings fitted to the teacher's LayerNorm |
# | padding | not said | masked positions get a score of about -6 | no part in any loss or softmax; the padding vector is kept at zero, for trigrams look at it |
#
# ## What is scaled down
#
# The paper trains its IB-BERT-large (24 blocks, 512 between, 1024 inside) from scratch on 256 TPU chips. Here the
# teacher is made of the backbone: its blocks between new linear layers that start from closed forms (principal
# components and ridge regressions of its hidden states), then a short training with masked words. Widths keep the
# paper's proportions, except the word vectors and the inside of the student, which would become too thin: they are a
# quarter of the backbone's width, not an eighth. So attention holds 0.28 times the parameters of the four feed-forward
# networks, less than the paper's rule. Seeds share teacher and student, so the spread over seeds is that of
# fine-tuning alone.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
seed = 0
profile = "custom"  # names the folder of the record
variant = ""  # "", "paper" or "code"
strategy = "progressive"  # or joint, auxiliary
feature_transfer = True  # False: without it
attention_transfer = True  # False: without it
between = 0  # width between blocks; 0: half of the backbone's
inside = 0  # width inside the student's blocks; 0: a quarter of the backbone's
ffns = 0  # feed-forward networks in a block; 0: 4, or 2 with tiny
tiny = False  # MobileBERT-TINY: keys, queries and values all from the one bottleneck
normalisation = "no_norm"  # or layer_norm
activation = "relu"  # or gelu
text = "news"  # unlabelled text: news, a corpus of lib/text.py, or a path to your own
study = "none"  # or strategies, transfers (each off), shapes (Table 4), code
timing_blocks = 0  # blocks of the timed shapes below; 0: the paper's 24

# %%
from lib import parameters, plots, runs
from lib.methods import mobilebert, mobilebert_shapes, mobilebert_studies

plots.set_up()
p = parameters.read(mobilebert_studies.Config, globals())

# %%
records = []
for q in mobilebert_studies.variants(p):
    run = runs.start("mobilebert", q)
    student, history = run.compress(mobilebert.compress)
    records.append(run.finish(student, history))
record = records[0]

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# ## The stages before the task
#
# Masked words on held-out text: the teacher as it was made of the backbone and after its training, and the student
# after each stage. They are artefacts: every task and seed starts from the same one.

# %%
mobilebert_shapes.stages(record)

# %% [markdown]
# How far the student's blocks are from the teacher's, on held-out text: the plain feature difference (the teacher's
# LayerNormed maps have a mean square near 1) and the divergence of attention rows.

# %%
mobilebert_shapes.gap(record)

# %% [markdown]
# ## What NoNorm and relu are for
#
# The paper replaces LayerNorm by NoNorm and gelu by relu for the sake of a phone's latency and prints 192 ms without
# and 62 ms with both (Table 4, Pixel 4, TensorFlow Lite). Here the paper's own shape at random weights, batch 1, 128
# tokens, all four variants in interleaved rounds in this one process. The speed is the median of the ratios *inside* the
# rounds, so it need not be the quotient of the two medians in the table, least of all on a busy machine; below 1 a variant
# is slower, and quartiles on both sides of 1 decide nothing. What a processor's library has fused decides the ratio, so it
# need not be the phone's.

# %%
mobilebert_shapes.operational("MobileBERT", layers=p.timing_blocks)

# %% [markdown]
# The paper's smaller shape, MobileBERT-TINY:

# %%
mobilebert_shapes.operational("MobileBERT-TINY", layers=p.timing_blocks)

# %% [markdown]
# ## All runs of this notebook

# %%
plots.runs(records)
