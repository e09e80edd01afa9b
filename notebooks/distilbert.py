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
# # DistilBERT
#
# Sanh et al. 2019, [arXiv 1910.01108](https://arxiv.org/abs/1910.01108). The student is distilled *before* it sees any
# task, from the raw language model on unlabelled text; afterwards it is fine-tuned like any other model. It has half of
# the teacher's layers at the teacher's width, no token types and no pooler, and starts from every second layer or so of
# the teacher. Teacher $t$ and student $s$ read the same text with 15% of the tokens hidden, and three losses are added:
#
# $$ L = 5\,L_{ce} + 2\,L_{mlm} + 1\,L_{cos}, \qquad
# L_{ce} = T^2\,\mathrm{KL}\!\left(\mathrm{softmax}(z_t/T)\,\|\,\mathrm{softmax}(z_s/T)\right), \qquad
# L_{cos} = 1 - \cos(h_s, h_t). $$
#
# $z$ are the logits over the whole vocabulary, $h$ the last hidden states, and $L_{mlm}$ is the cross-entropy with the
# hidden words. $T = 2$; $T^2$ keeps the size of the gradient the same at any temperature. The text is shared: general
# distillation is done once for all tasks and seeds of a backbone and kept, and a record counts its cost apart.
#
# ## What the paper leaves open, and what is done here
#
# The paper gives neither weights nor temperature. The official code gives 5, 2, 1 and $T = 2$, and so do we.
#
# | | paper | official code (`variant="code"`) | default here |
# |---|---|---|---|
# | layers of 12 that the student starts from | one out of two (`variant="paper"`: 0, 2, 4, 6, 8, 10) | 0, 2, 4, 7, 9, 11 | the code's rule at any depth: equal steps from first to last (of six: 0, 2, 5) |
# | where $L_{ce}$ is taken | not said | every token that is no padding | masked tokens only: the vocabulary is what costs, and $L_{cos}$ still sees every token |
# | token type 0, which BERT adds at every position | "removed" | dropped | folded into the position table: the student's embedding layer then gives exactly what the teacher's gives; `token_types="drop"` for the code's |
# | the head's dense layer | not said | drawn anew unless asked for | copied: little text is there to learn it again |
# | which words are masked | dynamic masking | rarer ones more often, weight $\mathrm{count}^{-0.7}$ | all alike |
# | position table | not said | frozen, by a side effect | trained |
# | Adam's $\beta_2$ | not said | 0.98 | 0.999, the loop's, for every method |
#
# Position, not word table: the decoder is tied to the words, and would shift with them. A backbone that comes without a
# language-modelling head (sentence encoders do) is given one first: BERT's form of head, tied to its word embeddings,
# trained on the same text while the encoder stays as it is. How well that head predicts hidden words stands in
# the notebook's table of the general stage, and it limits what $L_{ce}$ can teach.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
variant = ""  # "", "paper" or "code"
layers = 0  # of the student; 0: half of the backbone's
text = "news"  # unlabelled: news, gutenberg, wiki_paragraphs, ... joined by +, or a path to your own (lib/text.py)
text_tokens = 100000  # drawn from it
kd_weight = 5.0
mlm_weight = 2.0
cosine_weight = 1.0
task_distillation = False  # distil from the fine-tuned teacher while fine-tuning, too
study = "none"  # or ablation (the paper's Table 4), code, paper, task, token_types

# %%
from IPython.display import HTML

from lib import general_plots, parameters, plots, report, runs
from lib.methods import distilbert
from lib.reporting import tables

plots.set_up()
p = parameters.read(distilbert.Config, globals())

# %%
records = []
for q in distilbert.variants(p):
    run = runs.start("distilbert", q)
    student, history = run.compress(distilbert.compress)
    if p.comparison_tokens and not records:
        run.study["compared"] = distilbert.compare(run)
    records.append(run.finish(student, history))
record = records[0]

# %% [markdown]
# ## The general stage
#
# Hidden words predicted on text that was held out. The paper's stage took Wikipedia, BookCorpus and eight V100 for about
# 90 hours; the table says how small this one is. Where the teacher's head was trained here, its encoder stayed fixed: a
# student, all of which learns to predict words, can overtake it.

# %%
general_plots.stage(record)

# %%
general_plots.curves(record)

# %%
general_plots.cost(record)

# %% [markdown]
# What each choice of the table above does, in small stages on the same batches. The code's loss on every token is what
# costs speed; a random start shows what the teacher's layers bring.

# %%
plots.compared(record)

# %% [markdown]
# ## On the task

# %%
plots.summary(record)

# %%
plots.curves(record)

# %%
plots.runs(records)

# %% [markdown]
# ## Each loss off, and a random start
#
# The paper's Table 4 beside ours, over all tasks and seeds of this profile for which both runs exist. Printed are changes
# of the mean over GLUE.

# %%
general_plots.ablation(record, "distilbert", "Table 4", {
    "no-ce": "DistilBERT without L_ce", "no-cos": "DistilBERT without L_cos", "no-mlm": "DistilBERT without L_mlm",
    "random": "DistilBERT random initialisation"})

# %% [markdown]
# ## The paper's tables beside ours

# %%
HTML(report.beside("distilbert", "distilbert", "Table 1"))

# %%
HTML(tables.frame("DistilBERT, Table 4, development sets", report.reported_table("distilbert", "Table 4")))
