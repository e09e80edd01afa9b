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
# # TinyBERT
#
# Jiao et al. 2020, [arXiv 1909.10351](https://arxiv.org/abs/1909.10351). The student is narrow as well as shallow: of
# BERT-base it has 4 of 12 layers and 312 of 768 dimensions, with as many attention heads as the teacher. Nothing of the
# teacher's weights fits into it, so it starts from random weights and copies what the teacher *computes*, layer by
# layer. Student layer $m$ of $M$ learns from teacher layer $g(m)$ of $N$ (uniform: $g(m) = mN/M$), with $g(0) = 0$ for
# the embeddings:
#
# $$ \begin{aligned}
#    L_\mathrm{embd} &= \mathrm{MSE}(E^S W_e,\, E^T) \\
#    L_\mathrm{hidn} &= \mathrm{MSE}(H^S_m W_h,\, H^T_{g(m)}) \\
#    L_\mathrm{attn} &= \frac{1}{h} \sum_{i=1}^{h} \mathrm{MSE}(A^S_{m,i},\, A^T_{g(m),i})
#    \end{aligned} $$
#
# $A = QK^\top/\sqrt{d}$ are attention scores *before* softmax; $W_e$ and $W_h$ are learned beside the student and thrown
# away. The prediction layer learns the teacher's probabilities,
# $L_\mathrm{pred} = -\,\mathrm{softmax}(z^T/t) \cdot \log\mathrm{softmax}(z^S/t)$ with $t = 1$. Labels are not used.
#
# There are two stages, and the second has two steps that are separate runs of training, never one joint loss:
#
# 1. **General distillation**: embedding, hidden and attention losses on unlabelled text; the teacher is the backbone
#    as it was pre-trained. It depends on no task and no seed, so it is built once and shared.
# 2. **Task distillation** from the fine-tuned teacher on *augmented* rows: **a)** the same three losses, **b)** the
#    prediction loss alone.
#
# **Augmentation**: $N_a = 20$ new rows from each row. Every word is replaced with probability $p_t = 0.4$ by one of
# $K = 15$ candidates: the masked language model's where the word is a single piece, else the nearest word vectors.
# All new rows are labelled by the teacher.
#
# ## What the paper leaves open, and where its code differs
#
# | | paper | official code | here |
# |---|---|---|---|
# | projections | $W_e$ and $W_h$, no bias | one matrix with bias for both | the paper's; the code's with `variant="code"` |
# | mean of hidden and attention losses | for one input of length $l$ | over all positions, padding too | over the real positions of a row, then over rows; the code's with `variant="code"` |
# | prediction loss | sum over classes | mean over classes too | the sum; the mean with `variant="code"` |
# | teacher's dropout | not said | active | off; active with `variant="code"` |
# | learning rate of step a | 5e-5 | 5e-5, constant | `intermediate_lr`, 5e-4 by default, warm-up and decay; constant with `variant="code"`; not tuned: `lr_grid` reaches step b alone |
# | step b of regression | original rows | original rows, labels | original rows, the teacher's output; labels with `variant="code"` |
# | candidates | of the sentence as changed so far; the K most probable, the word itself may be among them | of the original sentence, with it as second segment; no stop words | of the original sentence, never the word itself; with `variant="code"` second segment, and no stop words by scikit-learn's list instead of the code's |
# | new rows for each | 20 | 10 to 30, by task | `new_rows`, 20, with `variant="code"` too |
# | word vectors | GloVe | GloVe, 100,000 words | the backbone's own input embeddings, where the word's own pieces are no candidates; a GloVe file by `word_vectors` |
# | share of new rows | 20 of 21 | up to 30 of 31 | `augmented_share` of the tokens, half by default, original rows repeated beside them; the paper's with 1 |
# | pairs | not said | the first sentence stays at its last version | both sentences change in each new row |
# | classifier | not said | relu of the pooled output | the architecture's own, so that the student stays an ordinary model |
# | share of step a | 20 of 23 passes | 10 of 13 passes | half of the token budget, `intermediate_share`: only step b trains the head, and the budget is small |
# | tokens of an ablation | as many passes, so 1 of 21 steps without augmentation | not said | as many tokens; as many passes in the paper's recipe (`augmented_share=1`, no `max_tokens`) |
# | losses and mappings ablated | "w/o Trm" in both stages, of the others not said | not said | in both stages |
#
# The default is `variant="paper"` because the comparison of this book is with the paper's tables.
#
# ## What is small here
#
# The paper distils 2,500 million words and then makes 23 passes over 20-fold augmented rows; here both stages together
# see a fraction of a percent of that. Steps a and b *share* the token budget that every method of this study gets, and
# new rows are a share of it (the record's notes say how many). A narrow student from random weights is the one that
# suffers most from few tokens: students that are cut out of the backbone start with everything it knows. In the demo a
# score near the majority class is therefore what to expect; the notebook's curve of step a shows whether its losses fall.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
variant = ""  # "", "paper" or "code"
shape = "tinybert4"  # or tinybert6, both in proportion to the backbone
mapping = "uniform"  # or top, bottom
without = []  # parts left out: general, task, augmentation, embedding, hidden, attention, prediction
study = "none"  # or procedures (Table 2), objectives (Table 3), mapping (Table 4), code

# %%
from IPython.display import HTML

from lib import parameters, plots, report, runs
from lib.methods import tinybert, tinybert_data, tinybert_studies
from lib.reporting import tables

plots.set_up()
p = parameters.read(tinybert_studies.Config, globals())
print(tinybert.plan(p))

# %%
records = []
for q in tinybert_studies.variants(p):
    run = runs.start("tinybert", q)
    student, history = run.compress(tinybert.compress)
    records.append(run.finish(student, history))
    if len(records) == 1:
        first = run
record = records[0]

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# The loss above is that of step b. Step a came before it:

# %%
plots.curve(record, "intermediate_loss", "sum of the losses of step a")

# %%
print("\n".join(record.notes))

# %% [markdown]
# ## General distillation
#
# The losses on held-out text before and after, dropout off, and what the stage cost:

# %%
tinybert_data.general_table(first)

# %% [markdown]
# ## New rows
#
# How many there were, and how much of their rows they keep. A new row whose class by the teacher is not that of its row
# has lost what the row said. It is not labelled wrongly: the student learns the teacher's answer to the new row itself.

# %%
tinybert_data.augmentation_table(record)

# %% [markdown]
# Some rows and what was made of them:

# %%
tinybert_data.examples(first)

# %% [markdown]
# ## The paper's ablations beside ours
#
# Table 2, what each stage gives, and Table 3, what each loss gives: TinyBERT4 of BERT-base on the development sets. Ours
# need `study = "procedures"` and `study = "objectives"`; what was not run says so. "Without Trm" leaves out hidden and
# attention losses in both stages.

# %%
HTML(report.variants_beside("tinybert", "Table 2 (learning", {
    "tinybert": "TinyBERT4 full", "tinybert-no-general": "TinyBERT4 w/o GD", "tinybert-no-task": "TinyBERT4 w/o TD",
    "tinybert-no-augmentation": "TinyBERT4 w/o DA"}))

# %%
HTML(report.variants_beside("tinybert", "Table 3 (objectives", {
    "tinybert": None, "tinybert-no-embedding": "TinyBERT4 w/o Embd", "tinybert-no-prediction": "TinyBERT4 w/o Pred",
    "tinybert-no-transformer": "TinyBERT4 w/o Trm", "tinybert-no-attention": "TinyBERT4 w/o Attn",
    "tinybert-no-hidden": "TinyBERT4 w/o Hidn"}))

# %% [markdown]
# Table 4, layer mappings (`study = "mapping"`), and the official code beside the paper's formulas (`study = "code"`):

# %%
HTML(report.variants_beside("tinybert", "Table 4 (layer mapping", {
    "tinybert": "TinyBERT4 Uniform mapping", "tinybert-top": "TinyBERT4 Top mapping",
    "tinybert-bottom": "TinyBERT4 Bottom mapping", "tinybert-code": None}))

# %% [markdown]
# These tables as printed, and Table 1, which was scored by the GLUE server on the test sets: their labels are not
# public, so ours has no place beside it.

# %%
HTML("".join(tables.frame(f"TinyBERT, {name.split(' (')[0]}", report.reported_table("tinybert", name))
             for name in ("Table 2 (learning", "Table 3 (objectives", "Table 4 (layer mapping", "Table 1 (GLUE")))

# %% [markdown]
# ## All runs of this notebook

# %%
plots.runs(records)
