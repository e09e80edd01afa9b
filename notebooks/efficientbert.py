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
# # EfficientBERT
#
# Dong et al. 2021, [arXiv 2109.07222](https://arxiv.org/abs/2109.07222). In BERT the feed-forward parts hold twice as
# many weights as attention. This paper *searches* for better ones. The student is half as deep as the teacher and
# narrow (540 of 768), its attention is ordinary, and in each layer
#
# $$ x \leftarrow \mathrm{LayerNorm}\bigl(x + \mathrm{dropout}(f(x))\bigr) \qquad s \text{ times, with weights of their own,} $$
#
# where $f$ is an expression over $x$ with two linears, $W_1$ to an inner width of $1/d$ of the hidden width and $W_2$
# back, activations (gelu, sigmoid, tanh, relu, leaky relu, elu, swish) and binary operations (add, mul, max).
# Operands of unlike width are cut to the inner width.
#
# **Search**, coarse to fine: 1. functions and sizes $(s, d)$ of all layers together; 2. functions, sizes fixed; 3.
# sizes, functions fixed. A candidate takes slices of the weights of a *supernet* ($s = 4$, $d = 1$, plain gelu), is
# distilled for a moment and scored on held-out rows. When enough were scored, boosted trees learn which candidates are
# in the upper half, and only mutations that they accept are tried. In stage 3 nothing is trained for a candidate: one
# supernet of the found functions is trained with a random $(s, d)$ in every layer and step, and sizes are scored inside
# it. (The word *evolutionary* does not quite fit: there are mutations, but no population.)
#
# **Distillation**, the sum of, with all factors 1,
#
# $$ \mathrm{MSE}(P e^S, e^T) + \sum_{\ell}\Bigl[\mathrm{MSE}(A^S_\ell, A^T_{g(\ell)}) + \mathrm{MSE}(P h^S_\ell, h^T_{g(\ell)})\Bigr]
#   + \mathrm{CE}\bigl(\mathrm{softmax}(z^T),\, z^S\bigr), \qquad g(\ell) = \ell N/M, $$
#
# with embeddings $e$, attention scores before softmax $A$, hidden states $h$, logits $z$ and one projection $P$. On
# unlabelled text first, with the raw backbone as teacher and without the last term; then on the task.
#
# ## What the paper leaves open, and where this differs
#
# | | official code | here |
# |---|---|---|
# | fitness of a candidate | MNLI | `search_task`; by default the held-out rows of the task itself, and the record says so |
# | candidates | 80 before the partition, then without end | `candidates`, a handful in the demo, tens at `glue` |
# | classifiers | LightGBM, ten settings | scikit-learn's gradient boosting, four settings |
# | what a classifier sees | the list of operations | their counts, the height, $s$ and $d$ of each layer |
# | a mutation | changes a tree once, or leaves it if that gave nothing allowed | each layer keeps its function with probability 1/2, else it is changed until it is another |
# | parallel forms, such as $W_1 x + W_2 x$ | in the space | not in it: $W_1$ stands inside $W_2$ |
# | model size | 15-16M | the same window, as a share of the released feed-forward parameters |
# | weight-sharing supernet of stage 3 | text, then several tasks at once | text, then the fitness task |
# | plain supernets | one of Wikipedia for stages 1 and 2, one of Wikipedia and books for the final student | one for both; the released, the searched and the control start from its slices |
# | released functions, fewer layers | six layers | those at the same relative depth, as layers are paired in distillation; a note of the run names them |
# | means of the losses | over padding too | over real tokens, which shifts the balance of the terms against the prediction |
# | prediction loss | mean over classes too, so that it weighs less with more of them | the same; for regression the labels |
# | text | pairs of segments, token types 0 and 1 | single pieces, token type 0 alone |
# | EfficientBERT+ | starts from the supernet after its multi-task training | not offered: there is no multi-task training here |
#
# **The control.** Initialisation and distillation may matter more than the functions, and no comparison that separates
# them was read in the paper. `control = True` puts the plain $W_2\,\mathrm{gelu}(W_1 x)$ under the same stacks, ratios,
# starting weights and training (`study = "control"` makes both runs). The starting weights were trained for the plain
# function, which favours the control.
#
# **The search's own ablations**, `study = "search"`: from a warm supernet; from random weights (`warm_up = False`, the
# final student starts as before, so that only what was found differs); and as many candidates in one stage, functions
# and sizes together (`candidates = [48, 0, 0]`). The candidates are as many, the tokens are not: in the third stage one
# supernet is trained instead of each candidate. Each variant searches once, and all seeds of the final student share
# what it found: the spread of their scores says nothing about the luck of a search.
#
# ## What is small here
#
# The paper pre-trains for ten passes over Wikipedia and books; here the text is a few thousand sentences. A student
# that starts from random weights learns little from that, so low scores here speak of the scale and not of the method.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
variant = ""  # labels the record
architecture = "released"  # or search
control = False  # the plain gelu function with the same sizes
text = "news"  # unlabelled text: news, a corpus of lib/text.py, or a path to your own
search_task = ""  # fitness of the search; empty: the task itself
warm_up = True  # False: the search starts its candidates from random weights
study = "none"  # or control, search (without warm-up; in one stage)

# %%
import pandas as pd

from lib import general_plots, parameters, plots, runs
from lib.methods import efficientbert, efficientbert_studies

plots.set_up()
p = parameters.read(efficientbert_studies.Config, globals())
shape = efficientbert.shape(p)
print(f"student: {shape.num_hidden_layers} layers, width {shape.hidden_size}, {shape.num_attention_heads} heads, "
      f"word vectors of {shape.embedding_size}")

# %%
records = []
for q in efficientbert_studies.variants(p):
    run = runs.start("efficientbert", q)
    student, history = run.compress(efficientbert.compress)
    records.append(run.finish(student, history))
record = records[0]

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# Losses on held-out text before and after the stages that come before the task, of the plain supernet and of the student:

# %%
efficientbert_studies.general_table(record)

# %% [markdown]
# The functions of the student:

# %%
efficientbert_studies.architecture(record)

# %%
pd.DataFrame({"note": record.notes})

# %% [markdown]
# ## The search
#
# With a handful of candidates and short training the scores are noisy: differences of a few points on the held-out rows
# are chance. The plot shows that the search runs, not that it finds.

# %%
efficientbert_studies.search_table(record)

# %%
efficientbert_studies.search_plot(record)

# %% [markdown]
# ## What the stages before the task cost

# %%
general_plots.cost(record)

# %% [markdown]
# ## The paper's shapes
#
# Counted here from the configurations. TINY and ++ take leading slices of the 540-wide model, ++ each layer twice. The
# printed size of ++ belongs to inner widths of the 540-wide model; the released code builds the smaller one.

# %%
efficientbert_studies.sizes()

# %% [markdown]
# ## All runs of this notebook

# %%
plots.runs(records)
