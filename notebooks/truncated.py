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
# # Truncated fine-tuning
#
# The plainest way to a smaller model: keep the lowest layers of the pre-trained encoder, throw the others away, and
# fine-tune what is left. BERT-of-Theseus prints it as the row "Fine-tuning" (Table 2: the lowest 6 of 12 layers of
# BERT-base). No teacher takes part in training; one is fine-tuned here all the same, because retention is measured
# against it. With $h_0$ the embeddings of a text, $r$ layers kept of $N$, and a new output layer $W$,
#
# $$ h_l = \mathrm{layer}_l(h_{l-1}) \;\; (l = 1, \dots, r), \qquad L = -\log \operatorname{softmax}(W\,h_r)_y, $$
#
# and the squared error where the label is a number.
#
# ## What the source leaves open
#
# | | BERT-of-Theseus | here |
# |---|---|---|
# | which layers stay | the lowest 6 of 12 | the lowest half; `layers` for another number |
# | weights cut from | the pre-trained encoder | the same, not the fine-tuned teacher |
# | learning rate | searched | searched where the profile gives a grid, with the same effort for every method |
# | the number of a task | median of 5 runs | mean over seeds with its interval, and the median |
#
# A method that does not beat this row has not earned its extra cost.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
layers = 0  # of the student; 0: half of the backbone's

# %%
from lib import parameters, plots, runs
from lib.methods import truncated

plots.set_up()
p = parameters.read(truncated.Config, globals())
truncated.plan(p)

# %%
run = runs.start("truncated", p)
student, history = run.compress(truncated.compress)

# %%
record = run.finish(student, history)

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# ## Beside the paper
#
# Theseus, Table 2 (GLUE development sets, BERT-base, medians of 5 runs), beside the committed runs of this study.
# Backbone and scale differ, so retention is what may be compared, not the scores.

# %%
from IPython.display import HTML

from lib import report

HTML(report.beside("theseus", "truncated", "Table 2"))
