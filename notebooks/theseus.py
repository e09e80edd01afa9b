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
# # BERT-of-Theseus
#
# Xu et al. 2020, [arXiv 2002.02925](https://arxiv.org/abs/2002.02925). The fine-tuned encoder (the teacher; the paper
# says *predecessor*) is cut into modules of consecutive layers. Each module $\mathrm{prd}_i$ has a *substitute*
# $\mathrm{scc}_i$ of one layer. For every training batch a coin is thrown for each module, and the substitute takes
# the module's place where it shows heads:
#
# $$ r_i \sim \mathrm{Bernoulli}(p), \qquad h_{i+1} = r_i\,\mathrm{scc}_i(h_i) + (1 - r_i)\,\mathrm{prd}_i(h_i). $$
#
# Only the substitutes are trained, and only by the loss of the task: nothing compares the student with the teacher's
# logits or hidden states. Gradients do pass through the frozen teacher layers, and that is how a substitute learns to
# work beside them. The replacing rate rises linearly with the optimiser step $t$, a curriculum,
#
# $$ p(t) = \min(1,\; k\,t + b), $$
#
# and once it is 1 the substitutes train alone (successor fine-tuning). The student is the chain of substitutes between
# the teacher's embeddings and the teacher's head, which stay as they were.
#
# ## What the paper leaves open, and where its code differs
#
# | | paper | official code | here |
# |---|---|---|---|
# | substitutes start from | the lowest layers of BERT | the lowest layers of the *fine-tuned* model | `initial`; the paper's by default, the code's with `variant="code"` |
# | what is frozen | embeddings, teacher layers, head | the same, by leaving them out of the optimiser | gradients off; `variant="code"` leaves them on |
# | gradient clipping | not said | norm over all parameters, the frozen ones too | over the substitutes; over all with `variant="code"` |
# | a substitute that was not drawn | not said | still moves, by Adam's momentum (gradients are zeroed, not removed) | does not move; moves with `variant="code"` |
# | a batch that draws no substitute | not said | runs for nothing | counted, and no update is made |
# | dropout in frozen layers | not said | on | on; `frozen_dropout=False` switches it off |
# | anti-curriculum | rate $1 - p(t)$; a last phase with $p = 1$ is not mentioned | cannot be run | as in the paper; `anti_finish=True` adds the phase |
#
# The default is `variant="paper"` because the comparison of this book is with the paper's tables.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
variant = ""  # "", "paper" or "code"
layers = 0  # of the student; 0: half of the backbone's
schedule = "linear"  # linear (curriculum), constant or anti
base_rate = 0.3  # b
replacing_share = 0.5  # share of the steps after which p = 1
study = "none"  # or strategy, replacing_rate, module_impact, layers, initialisation, code, transfer

# %%
from lib import parameters, plots, runs
from lib.methods import theseus, theseus_studies

plots.set_up()
p = parameters.read(theseus_studies.Config, globals())

# %%
records = []
for q in theseus_studies.variants(p):
    run = runs.start("theseus", q)
    student, history = run.compress(theseus_studies.compress)
    records.append(run.finish(student, history))
record = records[0]

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# The replacing rate as it was in force:

# %%
plots.curve(record, "replacing_rate", "replacing rate p(t)")

# %% [markdown]
# ## Which module hurts most
#
# The teacher with one trained substitute in place at a time, on the held-out rows. The paper's Table 5 trains each
# substitute alone (`study = "module_impact"` does that); here they were trained together, which costs nothing extra.

# %%
plots.module_impact(record)

# %% [markdown]
# ## All runs of this notebook

# %%
plots.runs(records)

# %% [markdown]
# ## Beside the paper
#
# Theseus, Table 2 (GLUE development sets, BERT-base, medians of 5 runs), beside the committed runs of this study.
# Backbone and scale differ, so retention is what may be compared, not the scores.

# %%
from IPython.display import HTML

from lib import report

HTML(report.beside("theseus", "theseus", "Table 2"))
