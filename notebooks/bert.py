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
# # Fine-tuning: the teacher
#
# A pre-trained encoder gets an output layer and all of its weights are trained on the labels of the task
# (Devlin et al. 2019). For a text $x$ with class $y$, the first token's last hidden state $h(x)$ and the new matrix $W$,
#
# $$ \mathcal{L} = -\log \operatorname{softmax}(W\,h(x))_y , $$
#
# and the mean squared error where the label is a number (STS-B, ratings). The result is the **teacher** of every
# method in this book; BERT-of-Theseus calls it the predecessor. It is kept, and shared by all methods that need the
# teacher of the same task and seed.
#
# The state that is kept is the last one within one standard error of the best on a tenth of the training rows, held out
# by a hash of their text. The scored split decides nothing.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
backbone = "minilm-l6"  # minilm-l6, bert-base, a Hugging Face id or a folder
seed = 0
profile = "custom"  # names the folder of the record

# %%
from lib import parameters, plots, runs
from lib.methods import bert

plots.set_up()
p = parameters.read(bert.Config, globals())

# %%
run = runs.start("bert", p)
model, history = bert.from_artefact(run)

# %%
record = run.finish(model, history)

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

HTML(report.beside("theseus", "bert", "Table 2"))
