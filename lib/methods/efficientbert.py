"""EfficientBERT: a narrow BERT whose feed-forward functions were searched (Dong et al. 2021, arXiv 2109.07222).

Steps, each an artefact but the last: a supernet of plain gelu functions (s = 4, d = 1) is distilled from the backbone
on unlabelled text; the search (`efficientbert_search`) gives its weights to each candidate; the student takes its own
slices of them and is distilled on the text; then it is distilled from the teacher on the task.
Hyper-parameters: official code (methods.md 11.4-11.8).
"""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from safetensors.torch import load_file
from torch import nn

from lib import artefacts, evaluation, held_out, layers, models, text, training
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.methods import bert, efficientbert_distill, efficientbert_search, efficientbert_space
from lib.methods.efficientbert_model import PLAIN, RELEASED, EfficientBertConfig, plain, spread, taken
from lib.parameters import Bool, Float, Int, Ints, Parameters, Str
from lib.provenance import digest
from lib.training import History

WIDTH = 540 / 768  # student to teacher, paper
EMBEDDING = 128 / 768


class Config(text.General):
    """Parameters of EfficientBERT. Sizes of 0 follow the paper's proportions: half the layers, 540/768 of the width."""

    architecture: Literal["released", "search"] = "released"  # of the feed-forward parts: table 11.5, or searched here
    control: Bool = False  # the plain gelu function in its place, with the same stacks, ratios and training
    layers: Annotated[Int, Field(ge=0)] = 0
    heads: Annotated[Int, Field(ge=0)] = 0  # must be the teacher's
    head_size: Annotated[Int, Field(ge=0)] = 0
    embedding_size: Annotated[Int, Field(ge=0)] = 0
    # Distillation (methods.md 11.6, 11.8)
    hidden_ratio: Annotated[Float, Field(ge=0)] = 1.0  # of embedding, attention and hidden losses
    prediction_ratio: Annotated[Float, Field(ge=0)] = 1.0
    temperature: Annotated[Float, Field(gt=0)] = 1.0
    supernet_epochs: Annotated[Float, Field(gt=0)] = 1  # passes over the text; paper: 10
    # Search
    search_task: Str = ""  # fitness comes from its held-out rows; paper: MNLI. Empty: the task itself
    candidates: Ints = [24, 12, 12]  # of the three stages; zeros at the end leave stages out ([48, 0, 0]: one stage)
    warm_up: Bool = True  # False: in the search all starts from random weights; the final student still from slices
    first_candidates: Annotated[Int, Field(ge=1)] = 6  # before the partition is used; official code: 80
    refit_interval: Annotated[Int, Field(ge=1)] = 4  # official code: 10
    # Rows a step of all training inside the search. Official code: 64. A candidate sees so few tokens here that batches
    # of that size would be a handful of steps.
    candidate_batch_size: Annotated[Int, Field(ge=1, le=65536)] = 8
    candidate_text_tokens: Annotated[Int, Field(ge=0)] = 20_000  # official code: 2% of Wikipedia; 0: none
    candidate_text_lr: Annotated[Float, Field(gt=0, le=1)] = 1e-4
    candidate_tokens: Annotated[Int, Field(ge=1)] = 40_000  # of the fitness task; official code: 3 epochs of 10%
    candidate_lr: Annotated[Float, Field(gt=0, le=1)] = 4e-4
    sizes_tokens: Annotated[Int, Field(ge=1)] = 80_000  # of text, and again of the task: supernet of stage 3
    search_teacher_lr: Annotated[Float, Field(gt=0, le=1)] = 1e-4
    search_teacher_epochs: Annotated[Float, Field(gt=0)] = 3
    # Tokens for a teacher of the search of its own (seed 0), so that all seeds and trials share one search. 0: on the
    # task itself the run's teacher is asked; on another task as many as epochs decide.
    search_teacher_tokens: Annotated[Int, Field(ge=0)] = 0


def shape(p: Config) -> EfficientBertConfig:
    """The student's shape (plain functions) for the teacher of `p`, from configurations alone.

    Raises `InputError` for sizes that cannot be distilled: other heads, layers that do not divide the teacher's.
    """
    name = p.teacher or p.backbone
    t = models.configuration(name, "teacher" if p.teacher else "backbone")
    depth, heads, width = t.num_hidden_layers, t.num_attention_heads, t.hidden_size
    if p.heads not in (0, heads):
        raise InputError(f"heads: {p.heads} are not the teacher's {heads}; the attention loss compares head by head")
    count = layers.halved(depth, p.layers)
    if depth % count:
        raise InputError(f"layers: {count} does not divide the teacher's {depth}; each layer learns from every "
                         "(teacher layers / layers)-th")
    c = p.candidates
    if len(c) != 3 or min(c) < 0 or c[0] == 0 or (c[1] == 0 < c[2]):
        raise InputError(f"candidates: {c} must be three numbers, one a stage; the first is positive, and after a 0 "
                         "come zeros")
    return EfficientBertConfig(
        vocab_size=t.vocab_size, embedding_size=p.embedding_size or max(1, round(width * EMBEDDING)),
        hidden_size=heads * (p.head_size or max(1, int(width // heads * WIDTH))), num_hidden_layers=count,
        num_attention_heads=heads, max_position_embeddings=t.max_position_embeddings, pad_token_id=t.pad_token_id,
        type_vocab_size=max(1, getattr(t, "type_vocab_size", 1)), ffns=[[1, 1, PLAIN]] * count)


def with_ffns(config: EfficientBertConfig, entries) -> EfficientBertConfig:
    """The shape with these [stacks, d, expression]."""
    return EfficientBertConfig(**{**config.to_dict(), "ffns": [list(e) for e in entries]})


def _identity(run, config: EfficientBertConfig) -> dict:
    """What every general artefact depends on."""
    fields = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_size",
              "max_position_embeddings", "type_vocab_size", "pad_token_id")
    p = run.p
    return {"shape": {f: getattr(config, f) for f in fields},
            "backbone": models.content_hash(models.resolve(p.backbone)),
            "text": text.key(p.text, run.tokenizer, p.text_length, p.text_tokens),
            "settings": dataclasses.asdict(text.settings(p, "", precision=training.precision(p.precision)))}


def _teacher(run) -> nn.Module:
    """The backbone, frozen: teacher of the general stages. Its head is not used."""
    return run.backbone().to(training.device()).eval().requires_grad_(False)


def general(run, config: EfficientBertConfig, kind: str, epochs: float, source: artefacts.Artefact | None = None):
    """A student distilled on the text, from `source`'s weights or from scratch, as an artefact; all seeds share it.

    Its "held_out" has the losses on held-out text before and after.
    """
    p = run.p
    identity = {**_identity(run, config), "ffns": config.ffns, "epochs": epochs, "source": source and source.key}

    def make(folder: Path) -> dict:
        teacher = _teacher(run)
        efficientbert_distill.check_teacher(teacher, config)
        loaded = text.load(p.text, run.tokenizer, p.text_length, p.text_tokens)
        distiller = efficientbert_distill.build(config, teacher.config.hidden_size, {}, 0,
                                                source and source.folder / "distiller.safetensors")
        loss, precision = efficientbert_distill.general_loss(teacher), training.precision(p.precision)
        before = held_out.mean_loss(distiller, loss, loaded.held_out, precision)
        history = training.train(distiller, loss, loaded.train, text.settings(p, kind, epochs=epochs),
                                 checkpoints=Checkpoints(folder / "checkpoints", digest(identity)))
        after = held_out.mean_loss(distiller, loss, loaded.held_out, precision)
        distiller.save(folder / "distiller.safetensors")
        return {"seconds": history.seconds, "tokens": history.tokens, "curve": history.curve,
                "held_out": {"before": before, "after": after}, **loaded.record()}

    made = artefacts.build(kind, identity, make)
    run.artefacts.append(made)
    return made


def supernet(run, config: EfficientBertConfig) -> artefacts.Artefact:
    """The plain supernet: four stacked gelu functions of full inner width in every layer."""
    full = with_ffns(config, [[4, 1, PLAIN]] * config.num_hidden_layers)
    return general(run, full, "efficientbert-supernet", run.p.supernet_epochs)


def search(run, config: EfficientBertConfig, source: artefacts.Artefact | None) -> artefacts.Artefact:
    """The search as an artefact: its history is `artefact.meta["scored"]`, its result `artefact.meta["best"]`.

    `source`: the warm supernet, or None for random weights (`warm_up=False`).
    """
    p = run.p
    r, teacher, teacher_key = _fitness(run)
    plan = efficientbert_search.Plan(tuple(p.candidates), p.first_candidates, p.refit_interval)
    keys = ("candidate_text_tokens", "candidate_text_lr", "candidate_tokens", "candidate_lr", "sizes_tokens",
            "hidden_ratio", "prediction_ratio", "temperature", "candidate_batch_size")
    identity = {**_identity(run, config), "supernet": source and source.key, "plan": dataclasses.asdict(plan),
                "data": r.data.key, "teacher": teacher_key, "own": {k: getattr(p, k) for k in keys}}

    def make(folder: Path) -> dict:
        evaluator = Evaluator(run, r, config, teacher, source, folder)
        state = efficientbert_search.search(config, plan, folder / "scored.json", evaluator.score, evaluator.sizes)
        return {"seconds": sum(c["seconds"] for c in state.scored), "tokens": sum(c["tokens"] for c in state.scored),
                "scored": state.scored, "best": efficientbert_space.to_json(state.result()),
                "fitness_task": r.task.name}

    made = artefacts.build("efficientbert-search", identity, make)
    run.artefacts.append(made)
    return made


def _fitness(run) -> tuple:
    """(run on the fitness task, its teacher, what identifies that teacher)."""
    from lib import runs

    p = run.p
    if not p.search_task and (p.teacher or not p.search_teacher_tokens):
        own_teacher = run.teacher()
        return run, own_teacher.model, own_teacher.artefact.key if own_teacher.artefact else models.content_hash(
            models.resolve(p.teacher, "teacher"))
    own = {k: v for k, v in p.model_dump().items() if k in Parameters.model_fields}
    base = Parameters.model_validate({
        **own, "seed": 0, "lr": p.search_teacher_lr, "epochs": p.search_teacher_epochs, "teacher": "",
        "max_tokens": p.search_teacher_tokens, "lr_grid": [], "variant": "", "score_curve": False, "output": "",
        **({"task": p.search_task, "text_column": "", "text_column_2": "", "label_column": "", "kind": "auto"}
           if p.search_task else {})})
    r = runs.start("bert", base) if p.search_task else runs.Run("bert", base, run.data, run.tokenizer, run.sets)
    made = bert.teacher(r)
    run.artefacts.append(made)
    model = models.load_classifier(str(made.folder / "model"), r.task).to(training.device()).eval()
    return r, model, made.key


class Evaluator:
    """Scores candidates: slices of the supernet `source` (None: random weights), short distillation on text and on the
    fitness task, held-out score.
    """

    def __init__(self, run, fitness_run, config, teacher, source: artefacts.Artefact | None, folder: Path):
        self.p, self.run, self.config, self.teacher, self.folder = run.p, fitness_run, config, teacher, folder
        self.source, self.backbone = source and source.folder / "distiller.safetensors", _teacher(run)
        self.text = text.load(self.p.text, run.tokenizer, self.p.text_length, self.p.text_tokens).train

    def _train(self, distiller, name: str, text_tokens: int, task_tokens: int, wrap=lambda f: f) -> dict:
        """Distil on text, then on the task. Returns the cost, "seconds" and "tokens" (real ones), with "diverged" where
        the loss was no longer finite: that must not end the search.
        """
        p, e, began, tokens = self.p, efficientbert_distill, time.perf_counter(), 0

        def counted(loss):
            def inner(model, batch, step):
                nonlocal tokens
                tokens += int(batch["attention_mask"].sum())
                return loss(model, batch, step)
            return inner

        task_loss = e.task_loss(self.teacher, p.hidden_ratio, p.prediction_ratio, p.temperature)
        diverged = {}
        try:
            for part, loss, data, lr, budget in (
                    ("text", e.general_loss(self.backbone), self.text, p.candidate_text_lr, text_tokens),
                    ("task", task_loss, self.run.train, p.candidate_lr, task_tokens)):
                if budget:
                    training.train(distiller, counted(wrap(loss)), data, text.settings(
                        p, f"{name} ({part})", lr=lr, epochs=100, max_tokens=budget,
                        batch_size=p.candidate_batch_size, accumulation=1))
        except RuntimeError as error:
            if "not finite" not in str(error):
                raise
            diverged = {"diverged": True}
        return {"seconds": time.perf_counter() - began, "tokens": tokens, **diverged}

    def _held_out(self, distiller) -> float:
        metrics = self.run.metrics(distiller.student, "held_out", training.precision(self.p.precision))
        return evaluation.headline(self.run.task, metrics)

    def _build(self, entries) -> efficientbert_distill.Distiller:
        return efficientbert_distill.build(with_ffns(self.config, entries), self.teacher.config.hidden_size,
                                           models.names(self.run.task), 0, self.source)

    def score(self, architecture: efficientbert_space.Architecture) -> dict:
        """Stages 1 and 2: train a candidate of its own."""
        distiller = self._build(efficientbert_space.to_json(architecture))
        cost = self._train(distiller, "candidate", self.p.candidate_text_tokens, self.p.candidate_tokens)
        return {"score": math.nan if "diverged" in cost else self._held_out(distiller), **cost}

    def sizes(self, best: efficientbert_space.Architecture):
        """Stage 3: a supernet of the best operators, trained with random sizes within the limits in each step, kept in
        the folder; sizes are scored inside it without further training. If it diverged, so did all sizes.
        """
        distiller = self._build([[4, 1, efficientbert_space.text(t)] for _, _, t in best])
        file, lost = self.folder / "sizes.safetensors", self.folder / "sizes.diverged"
        cost, width = {"seconds": 0.0, "tokens": 0}, self.config.ffn_size

        def paths(chosen) -> None:
            for layer, (s, d) in zip(distiller.encoder.layers, chosen, strict=True):
                layer.path = (int(s), width // int(d))

        def random_paths(loss):
            def inner(model, batch, step):
                paths(efficientbert_space.sizes(self.config, step.random(3)))
                return loss(model, batch, step)
            return inner

        if file.exists():
            distiller.load_state_dict(load_file(file))
        elif not lost.exists():
            tokens = self.p.sizes_tokens
            cost = self._train(distiller, "supernet of sizes", tokens, tokens, random_paths)
            if cost.pop("diverged", False):
                lost.touch()
            else:
                efficientbert_distill.save_whole(distiller, file)

        def score(architecture: efficientbert_space.Architecture) -> dict:
            paths([g[:2] for g in architecture])
            paid = dict(cost)
            cost.update(seconds=0.0, tokens=0)  # the supernet's cost stands at the first candidate
            return {"score": math.nan if lost.exists() else self._held_out(distiller), **paid}

        return score


def functions(run, config: EfficientBertConfig, source: artefacts.Artefact) -> list[list]:
    """[stacks, d, expression] of each layer of the run's student; notes and history go into the run."""
    p, found = run.p, None
    if p.architecture == "search":
        found = search(run, config, source if p.warm_up else None)
        entries = found.meta["best"]
        task = found.meta["fitness_task"]
        run.notes.append(f"{len(found.meta['scored'])} candidates were scored, by the held-out rows of {task}"
                         + ("" if task == "mnli" else ", a stand-in for the paper's MNLI"))
        for stage in sorted({c["stage"] for c in found.meta["scored"]}):
            own = [c for c in found.meta["scored"] if c["stage"] == stage]
            if lost := sum("diverged" in c for c in own):
                run.notes.append(f"stage {stage} of the search: {lost} of {len(own)} candidates diverged"
                                 + ("; what it started from was kept" if lost == len(own) else ""))
        if not p.warm_up:
            run.notes.append("no warm-up: candidates started from random weights; the final student did not")
        if (stages := efficientbert_search.Plan(tuple(p.candidates)).stages) < 3:
            run.notes.append(f"the search had {stages} of the paper's three stages")
    else:
        entries = spread(RELEASED, config.num_hidden_layers)
        if len(entries) != len(RELEASED):
            numbers = ", ".join(str(i + 1) for i in taken(len(RELEASED), len(entries)))
            run.notes.append("the released feed-forward parts belong to six layers; the "
                             f"{len(entries)} layers here have those of {numbers}")
    if p.control:
        entries = plain(entries)
        run.notes.append("control: the plain gelu function with the same stacks, ratios and training")
    if not run.trial:
        run.study = {"architecture": entries, "search": found.meta["scored"] if found else []}
    return entries


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """Find the functions, distil the student on the text, then on the task. Returns (student, history)."""
    p, config = run.p, shape(run.p)
    efficientbert_distill.check_teacher(teacher, config)
    text.refuse_overlap(p.text, run.data)
    source = supernet(run, config)
    own = with_ffns(config, functions(run, config, source))
    prepared = general(run, own, "efficientbert-student", p.general_epochs, source)
    distiller = efficientbert_distill.build(own, teacher.config.hidden_size, models.names(run.task), p.seed,
                                            prepared.folder / "distiller.safetensors")
    if p.teacher and p.backbone == p.teacher:
        run.notes.append("on the text the fine-tuned teacher itself was learned from: no raw backbone was given")
    if not run.trial:
        run.study |= {"general": {"supernet": source.meta["held_out"], "student": prepared.meta["held_out"]}}
    loss = efficientbert_distill.task_loss(teacher, p.hidden_ratio, p.prediction_ratio, p.temperature)
    history = training.train(distiller, loss, run.train, run.settings(), checkpoints=run.checkpoints(),
                             evaluate=lambda d: run.scores(d.student))
    return distiller.student, history
