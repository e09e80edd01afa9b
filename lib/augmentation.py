"""TinyBERT's data augmentation (Jiao et al. 2020, arXiv 1909.10351, algorithm 1): new rows by replacing words.

A word is a run of letters. In each new row every word is replaced with probability `replace` (p_t) by one of
`candidates` (K) words: a word of one piece is masked and the language model's most probable words are taken, one of
several pieces gets its nearest word vectors. All other characters stay as they are, and so does the label.

Without a file of word vectors the vector of a word of several pieces is the mean of its pieces' input embeddings, so
its own pieces lie nearest of all. They are vocabulary entries but no words: `Vectors.nearest` passes them over. Pieces
of other words ("sur", "mor") cannot be told from words and stay.

The candidates of a word come once from the original sentence, as in the official code; the printed algorithm masks
the sentence as changed so far, which would need a forward pass for every word of every new row.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tqdm import tqdm

from lib.errors import InputError
from lib.mlm import MaskedLM

WORD = re.compile(r"[^\W\d_]+")
VECTORS_READ = 100_000  # of a word vector file: the commonest (official code)
SHORTEST = 3  # letters of a nearest word, unless the word itself has fewer


@dataclass(frozen=True)
class New:
    """A new row: the number of the row that it was made from, and its texts."""

    row: int
    text: str
    text_2: str


class Vectors:
    """Word vectors of unit length (V, d) with their words. Neighbours are the nearest by cosine."""

    def __init__(self, words: list[str], table: np.ndarray, source: str):
        self.words, self.source = words, source
        self.table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        self.place = {w: i for i, w in enumerate(words)}

    @classmethod
    def read(cls, path: str) -> Vectors:
        """A GloVe text file: a word and its numbers on a line. `InputError` where it is none."""
        words, rows = [], []
        try:
            with open(Path(path).expanduser(), encoding="utf-8") as f:
                for _, line in zip(range(VECTORS_READ), f, strict=False):
                    word, *numbers = line.rstrip("\n").split(" ")
                    words.append(word)
                    rows.append(np.array(numbers, dtype=np.float32))
            return cls(words, np.stack(rows), f"file {Path(path).name}")
        except (OSError, ValueError) as e:
            raise InputError(f"word_vectors {path}: must be a file, each line a word and its numbers ({e})") from e

    def nearest(self, vector: np.ndarray | None, word: str, count: int, whole: str = "") -> list[str]:
        """The `count` words nearest to `vector`, or to the word's own vector; none where it has no vector.

        They are of letters alone and not the word itself; nor a part of the text `whole`, nor of fewer letters than
        `SHORTEST` and `word` both.
        """
        if vector is None:
            if word.lower() not in self.place:
                return []
            vector = self.table[self.place[word.lower()]]
        least, whole = min(SHORTEST, len(word)), whole.lower()
        ordered = (self.words[i] for i in np.argsort(-(self.table @ vector), kind="stable"))
        fitting = (w for w in ordered if len(w) >= least and WORD.fullmatch(w) and w.lower() != word.lower()
                   and w.lower() not in whole)
        return list(itertools.islice(fitting, count))


class Augmenter:
    """Makes new rows with a language model. `vectors`: a file's, or None for the model's own input embeddings."""

    def __init__(self, model: MaskedLM, tokenizer, *, candidates: int = 15, replace: float = 0.4, max_length: int = 128,
                 vectors: Vectors | None = None, with_original: bool = False, skip_stop_words: bool = False,
                 precision: str = "fp32", batch_tokens: int = 8192):
        """`with_original`: the sentence itself is a second segment beside the masked one; official code, and it skips
        stop words too. Raises `InputError` for a tokenizer that gives no offsets or has no mask token."""
        if tokenizer.mask_token_id is None or not tokenizer.is_fast:
            raise InputError(f"{type(tokenizer).__name__}: augmentation needs a fast tokenizer with a mask token")
        self.model, self.tokenizer = model.eval(), tokenizer
        self.count, self.replace, self.max_length = candidates, replace, max_length
        self.with_original, self.skip_stop_words = with_original, skip_stop_words
        self.precision, self.batch_tokens = precision, batch_tokens
        self.embeddings = model.encoder.get_input_embeddings().weight.detach().float().cpu().numpy()
        self.whole = whole_words(tokenizer, len(self.embeddings))  # id -> word
        self.ids = np.array(sorted(self.whole))
        self.own = vectors is None
        self.vectors = vectors or Vectors([self.whole[i] for i in self.ids], self.embeddings[self.ids],
                                          "the backbone's own input embeddings")
        self.known: dict[tuple[str, int], list[str]] = {}  # (sentence, start of the word) -> candidates
        self.near: dict[tuple[tuple[int, ...], str], list[str]] = {}
        self.masked_tokens = 0  # tokens that the language model has read

    def words(self, sentence: str) -> list[tuple[int, int]]:
        """Start and end of each word that may be replaced."""
        found = [m.span() for m in WORD.finditer(sentence)]
        if self.skip_stop_words:
            found = [(a, b) for a, b in found if sentence[a:b].lower() not in ENGLISH_STOP_WORDS]
        return found

    def prepare(self, wanted: set[tuple[str, int, int]]) -> None:
        """Find the candidates of words (sentence, start, end) that are not known yet, many at once."""
        missing = sorted(w for w in wanted if (w[0], w[1]) not in self.known)
        sentences = list(dict.fromkeys(s for s, _, _ in missing))
        encoded = {}
        for i in range(0, len(sentences), 1024):
            part = sentences[i : i + 1024]
            second = part if self.with_original else None
            out = self.tokenizer(part, second, truncation=True, max_length=self.max_length)
            encoded |= {s: (out, j) for j, s in enumerate(part)}
        masked = []  # (sentence, start, ids, token type ids or None, place of the mask)
        for sentence, start, end in missing:
            out, j = encoded[sentence]
            first, last = (out.char_to_token(j, c, sequence_index=0) for c in (start, end - 1))
            if first is None or last is None:  # beyond max_length, where no model sees it
                self.known[sentence, start] = []
            elif first == last and not self._inside(out, j, first, start, end):
                self.known[sentence, start] = []  # a piece that holds more than the word, such as RoBERTa's 't
            elif first == last:
                masked.append((sentence, start, out["input_ids"][j],
                               out["token_type_ids"][j] if "token_type_ids" in out else None, first))
            else:
                pieces = out["input_ids"][j][first : last + 1]
                self.known[sentence, start] = self._near(tuple(pieces), sentence[start:end])
        self._ask(masked)

    @staticmethod
    def _inside(encoded, row: int, token: int, start: int, end: int) -> bool:
        span = encoded.token_to_chars(row, token)
        return start <= span.start and span.end <= end

    def _near(self, pieces: tuple[int, ...], word: str) -> list[str]:
        """Nearest words of one of several pieces; without a file its vector is the mean of its pieces'."""
        if (pieces, word) not in self.near:
            vector, whole = None, ""
            if self.own:
                vector = self.embeddings[list(pieces)].mean(0)
                whole = f"{word} {self.tokenizer.decode(list(pieces))}"  # the tokenizer's has no accents, say
            self.near[pieces, word] = self.vectors.nearest(vector, word, self.count, whole)
        return self.near[pieces, word]

    @torch.inference_mode()
    def _ask(self, masked: list[tuple]) -> None:
        device = next(self.model.parameters()).device
        allowed = torch.from_numpy(self.ids).to(device)
        masked.sort(key=lambda m: len(m[2]))
        bar = tqdm(total=len(masked), desc="masked words", unit="word", file=sys.stderr, disable=not masked,
                   mininterval=float(os.environ.get("BERT_PROGRESS_SECONDS", 2)))
        start = 0
        while start < len(masked):
            stop = start + 1
            while stop < len(masked) and len(masked[stop][2]) * (stop + 1 - start) <= self.batch_tokens:
                stop += 1
            part, start = masked[start:stop], stop
            bar.update(len(part))
            width = len(part[-1][2])
            ids = np.full((len(part), width), self.tokenizer.pad_token_id, dtype=np.int64)
            inputs = {"input_ids": ids, "attention_mask": np.zeros_like(ids)}
            if part[0][3] is not None:
                inputs["token_type_ids"] = np.zeros_like(ids)
            for row, (_, _, tokens, types, place) in enumerate(part):
                ids[row, : len(tokens)] = tokens
                ids[row, place] = self.tokenizer.mask_token_id
                inputs["attention_mask"][row, : len(tokens)] = 1
                if types is not None:
                    inputs["token_type_ids"][row, : len(tokens)] = types
                self.masked_tokens += len(tokens)
            places = torch.tensor([m[4] for m in part], device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                hidden = self.model.hidden({k: torch.from_numpy(v).to(device) for k, v in inputs.items()})
                logits = self.model.logits(hidden[torch.arange(len(part), device=device), places])
            best = logits[:, allowed].float().topk(min(self.count + 1, len(allowed))).indices.cpu().numpy()
            for (sentence, begin, *_), columns in zip(part, best, strict=True):
                old = WORD.match(sentence, begin).group().lower()
                found = [self.whole[self.ids[c]] for c in columns]
                self.known[sentence, begin] = [w for w in found if w.lower() != old][: self.count]
        bar.close()

    def draws(self, sentence: str, rng: np.random.Generator) -> list[tuple[int, int, float]]:
        """(start, end, a number in [0, 1) that picks the candidate) of the words to replace."""
        words = self.words(sentence)
        coins, picks = rng.random((2, len(words)))
        return [(a, b, pick) for (a, b), coin, pick in zip(words, coins, picks, strict=True) if coin < self.replace]

    def rewrite(self, sentence: str, draws: list[tuple[int, int, float]]) -> str:
        """The sentence with the drawn words replaced; a word without candidates stays."""
        out, end = [], 0
        for a, b, pick in draws:
            found = self.known[sentence, a]
            out += [sentence[end:a], found[int(pick * len(found))] if found else sentence[a:b]]
            end = b
        return "".join([*out, sentence[end:]])

    def make(self, pairs: list[tuple[str, str]], which: list[tuple[int, int]], seed: int) -> list[New]:
        """New rows for `which`, (row, number of the copy) each; a copy equal to its row or to another is left out.

        A copy is a function of (seed, row, number) and of nothing else.
        """
        plans = []
        for row, copy in which:
            rng = np.random.default_rng([seed, row, copy])
            plans.append([self.draws(sentence, rng) for sentence in pairs[row]])
        self.prepare({(pairs[row][side], a, b) for (row, _), plan in zip(which, plans, strict=True)
                      for side, draws in enumerate(plan) for a, b, _ in draws})
        out, seen = [], set()
        for (row, _), plan in zip(which, plans, strict=True):
            texts = tuple(self.rewrite(sentence, draws) for sentence, draws in zip(pairs[row], plan, strict=True))
            if texts != tuple(pairs[row]) and (row, texts) not in seen:
                seen.add((row, texts))
                out.append(New(row, *texts))
        return out


def whole_words(tokenizer, size: int) -> dict[int, str]:
    """Ids below `size` that are one whole word of letters by themselves, with the word."""
    special = set(tokenizer.all_special_ids)
    ids = [i for i in sorted(tokenizer.get_vocab().values()) if i < size and i not in special]
    texts = [t.strip() for t in tokenizer.batch_decode([[i] for i in ids])]
    words = [(i, t) for i, t in zip(ids, texts, strict=True) if WORD.fullmatch(t)]
    back = tokenizer([" " + w for _, w in words], add_special_tokens=False)["input_ids"]
    return {i: w for (i, w), pieces in zip(words, back, strict=True) if pieces == [i]}


def schedule(lengths: np.ndarray, copies: int, max_tokens: int, seed: int) -> list[tuple[int, int]]:
    """(row, number of the copy) in the order of making: every row's first, then every row's second, up to `copies`.

    Stops where copies as long as their rows would exceed `max_tokens`.
    """
    out, total = [], 0
    for copy in range(copies):
        for row in np.random.default_rng([seed, copy]).permutation(len(lengths)):
            total += int(lengths[row])
            if total > max_tokens:
                return out
            out.append((int(row), copy))
    return out


def file_hash(path: str) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()


def timed(work: Callable) -> tuple[object, float]:
    """What `work()` gives, and its seconds."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began
