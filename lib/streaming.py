"""Corpora too large for memory, read as a stream by `datasets`: the sequences of `lib.text`, one after the other.

    stream = Stream(source("hub:wikimedia/wikipedia:20231101.en"), tokenizer, 512, rank=0, world=8, seed=0)
    for ids in stream: ...            one pass; the next `for` is the next pass, in another order
    stream.encoded(1_000_000)         the next sequences of about that many tokens as `lib.batches.Encoded`
    state = stream.state_dict()       JSON-able; `load_state_dict(state)` goes on with the very next sequence

`python -m lib.streaming SOURCE OUT.parquet --characters 400000000` writes the beginning of a stream to a file, which is
what `-r text OUT.parquet` gives to a general stage: those hold their text in memory (`lib.text`).

Paragraphs, blocks, cutting and what is held out are those of `lib.text`; what needs the whole text is not: a block that
stands twice comes twice, a text that is short may hold no held-out block, and the order is that of the files, or a
shuffled one. Memory holds one window of sequences, whatever the size of the corpus.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
from datasets.distributed import split_dataset_by_node

from lib import text
from lib.batches import Encoded
from lib.errors import InputError, one_line, shorten
from lib.paths import check_space
from lib.provenance import digest

BUILDERS = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}
HUB = "hub:"
CHUNK = 64  # blocks that are tokenised together, as in lib.text; a state lies between two chunks
ROWS = 1000  # rows written at once


@dataclass(frozen=True)
class Source:
    """Where rows come from: the words for `datasets.load_dataset`, and how rows become text.

    `column`: of the text; "" is found by the names that `lib.text` takes. `running`: neighbouring rows of one document
    may stand in one block; a document is what the column `source` says, else the file. `spaced`: of each .txt file,
    whether blank lines part its paragraphs, else each line is one.
    """

    name: str
    words: tuple[tuple[str, object], ...]
    running: bool
    column: str
    shards: int
    spaced: tuple[bool, ...] = ()

    def rows(self) -> datasets.IterableDataset:
        return _opened(self.name, self.words)


@functools.lru_cache(maxsize=8)  # each shard is opened again, and the hub is asked but once
def _opened(name: str, words: tuple) -> datasets.IterableDataset:
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in words}
    try:
        return datasets.load_dataset(**plain, streaming=True)
    except Exception as e:  # noqa: BLE001 - the hub, the builders and fsspec share no base
        raise InputError(f"text {name}: cannot be opened ({shorten(' '.join(str(e).split()), 200)})") from None


def source(name: str, split: str = "train", running: bool | None = None) -> Source:
    """A name of `lib.text` but "news", a .txt, .jsonl or .parquet file, a folder of such files of one kind, or
    "hub:owner/name" or "hub:owner/name:configuration".

    `running`: None takes the text's own, True for files of yours, False for the hub, whose rows are mostly documents.
    Raises `InputError` for what is not there, cannot be opened or has no column of text.
    """
    spaced: tuple[bool, ...] = ()
    if name.startswith(HUB):
        path, _, configuration = name.removeprefix(HUB).partition(":")
        words = {"path": path, "split": split} | ({"name": configuration} if configuration else {})
        own = False
    else:
        found = _files(name)
        kinds = sorted({f.suffix for f in found})
        if len(kinds) != 1 or kinds[0] not in BUILDERS:
            raise InputError(f"text {name}: its files end in {', '.join(kinds)}; allowed: one of {', '.join(BUILDERS)}")
        words = {"path": BUILDERS[kinds[0]], "data_files": tuple(map(str, found)), "split": "train"}
        if kinds == [".txt"]:
            words["encoding"] = "utf-8-sig"
            spaced = tuple(map(_spaced, found))
        own = text.CORPORA[name][1] if name in text.CORPORA else True
    rows = _opened(name, tuple(words.items()))
    with _reading(name):
        head = pd.DataFrame(list(itertools.islice(rows, 100)))
    if head.empty:
        raise InputError(f"text {name}: holds no text")
    column = text._text_column(Path(name), head)
    return Source(name, tuple(words.items()), own if running is None else running, column, rows.num_shards, spaced)


def _files(name: str) -> list[Path]:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if name == text.NEWS or len(text.parts(name)) > 1:
            raise InputError(f"text {name}: cannot be streamed; allowed: {', '.join(text.CORPORA)}, a file, a folder, "
                             f"or {HUB}owner/name")
        return text.files(name)
    found = sorted(f for f in folder.iterdir() if f.suffix in BUILDERS)
    if not found:
        raise InputError(f"text {name}: the folder holds no file that ends in {', '.join(BUILDERS)}")
    return found


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """What goes wrong in the middle of a stream is one line, too."""
    try:
        yield
    except InputError:
        raise
    except Exception as e:  # noqa: BLE001 - the builders share no base
        said = shorten(" ".join(str(e.__cause__ or e).split()), 200)
        raise InputError(f"text {name}: cannot be read ({said})") from e


def _spaced(path: Path) -> bool:
    """Whether a blank line stands between lines of text. Reads no further than that."""
    began = blank = False
    try:
        with open(path, encoding="utf-8-sig") as f:
            for line in f:
                if line.strip():
                    if blank:
                        return True
                    began = True
                else:
                    blank = began
    except UnicodeDecodeError as e:
        raise InputError(f"text {path}: is not UTF-8 (byte {e.start}); save it as UTF-8") from None
    return False


def _paragraphs(of: Source, shard: int) -> Iterator[tuple[str, object]]:
    """(paragraph, its document) of one shard, in order, cleaned and filtered as `lib.text` does."""
    rows = of.rows().shard(num_shards=of.shards, index=shard) if of.shards > 1 else of.rows()
    pairs = ((row[of.column], row.get("source", shard)) for row in rows)
    if of.spaced and of.spaced[shard]:
        pairs = (("\n".join(p for p, _ in lines), shard)
                 for empty, lines in itertools.groupby(pairs, lambda x: not x[0].strip()) if not empty)
    for paragraph, document in pairs:
        clean = text._clean(paragraph, of.name) if isinstance(paragraph, str) else ""
        if clean and text._short_hash(clean) not in text.HOLDING:
            yield clean, document


def _blocks(shards: list[int], of: Source) -> Iterator[dict]:
    """{"block": text, "held_out": whether it is never trained on} of some shards: blocks as of `lib.text.blocks`."""
    for shard in shards:
        held, size, inside = "", 0, None
        with _reading(of.name):
            for paragraph, document in _paragraphs(of, shard):
                for piece in text._cut(paragraph):
                    if of.running and held and document == inside and size < text.BLOCK:
                        held, size = f"{held} {piece}", size + len(piece)
                        continue
                    if held:
                        yield _marked(held)
                    held, size, inside = piece, len(piece), document
        if held:
            yield _marked(held)


def _marked(block: str) -> dict:
    hashed = hashlib.sha256(block.encode(errors="surrogatepass")).digest()
    return {"block": block, "held_out": int.from_bytes(hashed[-8:], "big") / 2**64 < text.HELD_OUT}


class Stream:
    """Token sequences of one process: lists of ids of at most `length`, special tokens with them.

    Over all ranks every sequence comes once a pass: whole shards where `world` divides their number, else every
    `world`-th block. `buffer`: sequences that are shuffled together, window after window; 0 keeps the order of the
    files. The order is a function of (seed, pass, rank, world). One iterator at a time.
    Raises `InputError` for numbers that are out of range, and while reading for files that cannot be read.
    """

    def __init__(self, of: Source, tokenizer, length: int, *, rank: int = 0, world: int = 1, seed: int = 0,
                 buffer: int = 10_000, held_out: bool = False):
        text.check_length(length, tokenizer)
        before, after = text._special(tokenizer)
        for name, value, least in (("world", world, 1), ("seed", seed, 0), ("buffer", buffer, 0),
                                   ("text_length", length, len(before) + len(after) + text.SHORTEST)):
            if value < least:
                raise InputError(f"{name}: {value} is less than {least}")
        if not 0 <= rank < world:
            raise InputError(f"rank: {rank} is not one of the {world} processes, 0 to {world - 1}")
        self.of, self.tokenizer, self.length = of, tokenizer, length
        self.rank, self.world, self.seed, self.buffer, self.held_out = rank, world, seed, buffer, held_out
        self._before, self._after = before, after
        self._made_for = digest([repr(of), text.tokenizer_hash(tokenizer), length, rank, world, seed, buffer, held_out])
        self._pass, self._window, self._given, self._source = 0, 0, 0, None
        self._going: Iterator[list[int]] | None = None

    def state_dict(self) -> dict:
        """Where the stream is: small and JSON-able, whatever the size of the window."""
        return {"made_for": self._made_for, "pass": self._pass, "window": self._window, "given": self._given,
                "source": self._source}

    def load_state_dict(self, state: dict) -> None:
        """Go on from a state. The shard in progress is read again from its beginning, without tokenising it.

        Raises `InputError` for the state of another source, tokenizer, length, rank, world, seed or buffer.
        """
        if not isinstance(state, dict) or state.get("made_for") != self._made_for:
            raise InputError("state: it is of another stream; source, tokenizer, text_length, rank, world, seed and "
                             "buffer must be those that it was made with")
        self._pass, self._window, self._given = state["pass"], state["window"], state["given"]
        self._source, self._going = state["source"], None

    def __iter__(self) -> Iterator[list[int]]:
        self._going = self._going or self._run()  # outlives a loop that is left: the window is not read again
        while (ids := next(self._going, None)) is not None:
            yield ids
        self._going = None

    def _run(self) -> Iterator[list[int]]:
        """The rest of this pass."""
        data = self._data()
        if self._source is not None:
            data.load_state_dict(self._source)
        blocks = iter(data)
        while (window := self._next_window(blocks)) is not None:
            order = range(len(window))
            if self.buffer:
                order = np.random.default_rng([self.seed, self._pass, self._window]).permutation(len(window))
            for i in order[self._given :]:
                self._given += 1  # before the yield: the state of a taken sequence is after it
                yield [*self._before, *window[i], *self._after]
            self._window, self._given, self._source = self._window + 1, 0, data.state_dict()
        self._pass, self._window, self._given, self._source = self._pass + 1, 0, 0, None

    def _data(self) -> datasets.IterableDataset:
        """Blocks of this rank in the order of this pass."""
        shards = list(range(self.of.shards))
        if self.buffer:
            shards = np.random.default_rng([self.seed, self._pass]).permutation(shards).tolist()
        whole = datasets.IterableDataset.from_generator(_blocks, gen_kwargs={"shards": shards, "of": self.of})
        return split_dataset_by_node(whole, rank=self.rank, world_size=self.world)

    def _next_window(self, blocks: Iterator[dict]) -> list[list[int]] | None:
        """The next sequences, at least `buffer` of them while there are more blocks; None at the end."""
        room = self.length - len(self._before) - len(self._after)
        window, ended = [], True
        while chunk := list(itertools.islice(blocks, CHUNK)):
            ended = False
            chosen = [b["block"] for b in chunk if b["held_out"] == self.held_out]
            window += text._sequences(chosen, self.tokenizer, room)
            if len(window) >= self.buffer:
                break
        return None if ended else window

    def encoded(self, tokens: int) -> Encoded:
        """The next sequences up to about `tokens` tokens, at least one; fewer at the end of a pass.

        Raises `InputError` where a whole pass holds no sequence.
        """
        chosen, total = [], 0
        for _ in range(2):  # a state may lie right at the end of a pass
            for ids in self:
                chosen.append(ids)
                total += len(ids)
                if total >= tokens:
                    break
            if chosen:
                return text._encoded(chosen, self.tokenizer)
        raise InputError(f"text {self.of.name}: holds no sequence for rank {self.rank} of {self.world}")


def save(of: Source, out: Path, characters: int) -> int:
    """Write the first paragraphs of a source, about `characters` of them, to a parquet file that `lib.text` reads.

    Columns text and source (the document). Returns how many characters were written. Raises `InputError` for another
    ending than .parquet and for a folder that cannot be written.
    """
    if out.suffix != ".parquet":
        raise InputError(f"OUT: {out} must end in .parquet")
    check_space(out.parent)
    schema = pyarrow.schema({"text": pyarrow.string(), "source": pyarrow.string()})
    total, half = 0, out.with_name(out.name + ".tmp")
    try:
        with pyarrow.parquet.ParquetWriter(half, schema, compression="zstd") as writer, _reading(of.name):
            rows = ({"text": p, "source": f"{shard}-{d if of.running else i}"} for shard in range(of.shards)
                    for i, (p, d) in enumerate(_paragraphs(of, shard)))
            while total < characters and (some := list(itertools.islice(rows, ROWS))):
                ends = np.cumsum([len(r["text"]) for r in some]) + total
                some = some[: int(np.searchsorted(ends, characters)) + 1]
                writer.write_table(pyarrow.Table.from_pylist(some, schema))
                total = int(ends[len(some) - 1])
        if not total:
            raise InputError(f"text {of.name}: holds no text")
        half.replace(out)
    finally:
        half.unlink(missing_ok=True)
    return total


@one_line()
def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 with one line for wrong input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out", type=Path)
    parser.add_argument("--characters", type=int, default=400_000_000, help="about 4.5 times the tokens of English")
    parser.add_argument("--split", default="train", help="of the hub")
    a = parser.parse_args(arguments)
    if a.characters < 1:
        raise InputError(f"--characters: {a.characters} is less than 1")
    total = save(source(a.source, a.split), a.out, a.characters)
    print(f"{a.out}: {total:,} characters; give it to a general stage by -r text {a.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
