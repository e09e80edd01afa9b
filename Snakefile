# The grid: files are the DAG, one record a run. Called by `python -m lib.grid`, which checks the names first.
# Existence decides: a record that is there is not made again, whatever its modification time (inputs are ancient()).
import os

RECORDS = os.path.relpath(config["records"])
BUILD = os.path.relpath(config["build"])
PROFILE = config["profile"]
TASKS = config["tasks"]  # name in paths -> what the notebook is given
BACKBONE = config["backbone"]  # label in paths
RECORD = RECORDS + "/" + PROFILE + "/" + BACKBONE + "/{task}/{method}/seed-{seed}.json"
PAGE = "book/executed/{method}.ipynb"
JOBS = config["jobs"]  # [task, method, seed]


def teacher(wildcards):
    """The teacher's record, so that it is fine-tuned once and first; not asked for where the student's record exists."""
    if wildcards.method == "bert" or os.path.exists(RECORD.format(**wildcards)):
        return []
    return ancient(RECORD.format(task=wildcards.task, method="bert", seed=wildcards.seed))


ruleorder: efficiency > page


wildcard_constraints:
    seed=r"\d+",
    method="[a-z0-9]+",


rule all:
    input:
        [RECORD.format(task=t, method=m, seed=s) for t, m, s in JOBS],
        [PAGE.format(method=m) for m in config["pages"]],


rule run:
    """One run: the method's notebook, executed by papermill. The notebook writes the record last.

    Passive waiting: threads that spin at OpenMP's barriers gain nothing here and take the machine from everyone else.
    """
    input:
        teacher,
    output:
        RECORD,
    params:
        settings=lambda w: config["settings"][f"{w.task}/{w.method}"],
        task=lambda w: TASKS[w.task],
        executed=lambda w: f"{BUILD}/executed/{PROFILE}/{BACKBONE}/{w.task}/{w.method}/seed-{w.seed}.ipynb",
    threads: lambda w: config["teacher_threads" if w.method == "bert" else "threads"]
    retries: config.get("retries", 0)
    resources:
        mem_mb=8000,
        runtime=600,
    shell:
        "mkdir -p $(dirname {params.executed}) && OMP_NUM_THREADS={threads} OMP_WAIT_POLICY=passive BERT_PROGRESS_SECONDS=20 "
        "papermill notebooks/{wildcards.method}.ipynb {params.executed} {params.settings} --log-output "
        "-r task {params.task:q} -r backbone {config[given_backbone]:q} -p seed {wildcards.seed} {config[extra]} "
        "&& test -s {output:q}"


rule page:
    """The executed notebook as a page of the book."""
    input:
        lambda w: ancient(RECORD.format(task=config["page_task"], method=w.method, seed=config["page_seed"])),
    output:
        PAGE,
    params:
        executed=lambda w: f"{BUILD}/executed/{PROFILE}/{BACKBONE}/{config['page_task']}/{w.method}/"
                           f"seed-{config['page_seed']}.ipynb",
    shell:
        "mkdir -p book/executed && cp {params.executed:q} {output:q}"


rule efficiency:
    """Sizes and speeds need no training and leave no record: here the page itself is the output."""
    input:
        # after the runs, so that nothing else is running while it times
        [ancient(RECORD.format(task=t, method=m, seed=s)) for t, m, s in JOBS],
    output:
        PAGE.format(method="efficiency"),
    params:
        executed=f"{BUILD}/executed/{PROFILE}/efficiency.ipynb",
    threads: config["cores"]
    shell:
        "mkdir -p $(dirname {params.executed}) book/executed && OMP_NUM_THREADS={threads} OMP_WAIT_POLICY=passive "
        "papermill notebooks/efficiency.ipynb {params.executed:q} -f notebooks/profiles/{PROFILE}-efficiency.yaml "
        "--log-output && cp {params.executed:q} {output:q}"
