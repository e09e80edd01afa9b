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
# # Vanilla knowledge distillation
#
# Hinton et al. 2015, [arXiv 1503.02531](https://arxiv.org/abs/1503.02531). The student is the one of
# [truncated fine-tuning](truncated.ipynb): the lowest layers of the pre-trained encoder under a new head, all weights
# trained. What is added is the teacher's opinion. A label says only which class is right; the teacher's probabilities
# also say how near the others come, and a temperature $T$ brings these small numbers to where they can be seen. With
# logits $z^S$ of the student and $z^T$ of the teacher,
#
# $$ L = (1-\alpha)\,\mathrm{CE}\big(y, z^S\big)
#    + \alpha\,T^2\,\mathrm{KL}\big(\mathrm{softmax}(z^T/T)\,\big\|\,\mathrm{softmax}(z^S/T)\big). $$
#
# The gradient of the second term shrinks as $1/T^2$ when $T$ grows; the factor $T^2$ takes that back, so that
# $\alpha$ means the same at every temperature. BERT-PKD and BERT-of-Theseus both print this method as a baseline.
#
# ## What the papers say, what their code does, what is done here
#
# | | papers | official code of BERT-PKD | here |
# |---|---|---|---|
# | soft term | KL of one row, mean over the batch | mean over batch *and* classes: half as large for two classes, a third for three | mean over the batch; the code's with `variant="code"` |
# | teacher | its outputs are fixed | asked once beforehand, without dropout, and kept | the same: logits kept as an artefact; `cache=False` asks it for every batch |
# | regression | not defined: there is no distribution to soften | not in the code: cross-entropy only | $(1-\alpha)$ of the squared error to the label, $\alpha$ of that to the teacher's output; $T$ plays no part |
# | order of the rows | not said | order of the file, no shuffling | shuffled, rows of like length together |
# | $\alpha$, $T$ | searched over 0.2, 0.5, 0.7 and 5, 10, 20 | the same | 0.5 and 10, the middle of both; parameters |
# | learning rate | searched over 5e-5, 2e-5, 1e-5 | the same | searched where the profile gives a grid, with the same effort for every method |
# | precision | not said | half precision | bf16 where the processor has it; losses in float32 |
#
# The default is the formula (`variant="paper"` is another name for it), so that the same $\alpha$ means the same for
# tasks with two and with six classes. The teacher's pass over the training rows is not counted in the token budget of
# the student; its tokens and seconds stand in the record.

# %% tags=["parameters"]
task = "movies"  # a declared task (lib/tasks.py), or a path to your own CSV, TSV, JSONL or parquet file or folder
teacher = ""  # a folder with your own fine-tuned checkpoint; empty: fine-tuned here and kept
seed = 0
profile = "custom"  # names the folder of the record
variant = ""  # "", "paper" or "code"
layers = 0  # of the student; 0: half of the backbone's
alpha = 0.5  # weight of the teacher; 1 - alpha is that of the labels
temperature = 10  # T
cache = True  # ask the teacher once and keep its answers
gain_steps = 0  # steps timed with and without the cache; 0: not measured
comparison_tokens = 0  # tokens of each small run that compares variants; 0: none is made

# %%
from IPython.display import HTML

from lib import parameters, plots, report, runs
from lib.methods import kd
from lib.reporting import tables

plots.set_up()
p = parameters.read(kd.Config, globals())
print(f"a student of {kd.student_depth(p)} layers")

# %%
run = runs.start("kd", p)
student, history = run.compress(kd.compress)

# %%
study = {}
if p.gain_steps:
    study["caching_gain"] = kd.caching_gain(run, run.teacher().model)
if p.comparison_tokens:
    study["compared"] = kd.compare(run, run.teacher().model)
run.study = study or None
record = run.finish(student, history)

# %% [markdown]
# ## What came out

# %%
plots.summary(record)

# %%
plots.curves(record)

# %% [markdown]
# The two terms of the loss as they enter it:

# %%
plots.terms(record, {"hard": ("labels", 1 - p.alpha), "soft": ("teacher", p.alpha)})

# %% [markdown]
# ## What keeping the teacher's answers gains
#
# The teacher answers a row in the same way every time, so it is asked once and its logits are kept, keyed by hashes of
# its weights and of the tokenised rows. Timed in one process, on the same batches, both ways in turn. Filling the cache
# is one pass of the teacher over the rows; each visit of a row after the first gains the difference. A run that sees
# every row once, as the short demo does, gains nothing: the last line counts that.

# %%
plots.caching_gain(record)

# %% [markdown]
# ## What each choice does
#
# Small runs with the same start and the same batches: the variants of paper and code, each term alone, and no
# softening. They are too short to say which is best (the demo's end before much is learnt); they show how the terms of
# the loss change, the code's soft term for example by the number of classes. "labels only" is truncated fine-tuning.

# %%
plots.compared(record)

# %% [markdown]
# ## The printed numbers beside ours
#
# BERT-of-Theseus, Table 2: 6 of 12 layers of BERT-base on the development sets. Where ours is scaled down the cell says
# so and compares what is retained of the teacher.

# %%
HTML(report.beside("theseus", "kd", "Table 2"))

# %% [markdown]
# The formula and the code's reduction in whole runs, where they were made (`variant="code"`):

# %%
HTML(report.variants_beside("theseus", "Table 2", {"kd": "Vanilla KD", "kd-code": None}, title="Vanilla KD, variants"))

# %% [markdown]
# The official repository of BERT-PKD keeps its best settings on the development sets, vanilla KD among them:

# %%
HTML(tables.frame("official results, dev", report.reported_table("pkd", "official repository result summary")))
