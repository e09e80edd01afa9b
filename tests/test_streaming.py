"""Streamed corpora: every sequence once over all ranks, one order a seed, resumed bit for bit, cut as by `lib.text`."""

from __future__ import annotations

import itertools
import json
import os
import tracemalloc
from pathlib import Path

import pandas as pd
import pytest
import tiny

from lib import data, streaming, text
from lib.errors import InputError

PARAGRAPHS = [t for t, _, _ in tiny.rows(700, seed=3)]
LENGTH = 24
CORPORA = os.environ.get("CORPORA_DIR", "")


def write(folder: Path, paragraphs: list[str], suffix: str, name: str = "a") -> str:
    path = folder / f"{name}.{suffix}"
    frame = pd.DataFrame({"text": paragraphs})
    if suffix == "parquet":
        frame.to_parquet(path, row_group_size=500)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        path.write_text("\n\n".join(paragraphs))
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """`folders(n)`: a folder with the paragraphs in n parquet files."""
    made = {}

    def make(n: int) -> str:
        if n not in made:
            made[n] = tmp_path_factory.mktemp(f"shards-{n}")
            for i in range(n):
                begin, end = (k * len(PARAGRAPHS) // n for k in (i, i + 1))
                write(made[n], PARAGRAPHS[begin:end], "parquet", f"p{i}")
        return str(made[n])

    return make


def stream(name: str, **changes) -> streaming.Stream:
    return streaming.Stream(streaming.source(name), tiny.tokenizer(), LENGTH, **{"buffer": 40, **changes})


def rows(sequences) -> list[tuple[int, ...]]:
    return [tuple(ids) for ids in sequences]


def in_memory(name: str, length: int = LENGTH) -> list[list[tuple[int, ...]]]:
    """What `lib.text.load` gives without a budget: to train on, held out."""
    whole = text.load(name, tiny.tokenizer(), length, 10**9)
    return [rows(part.inputs["input_ids"]) for part in (whole.train, whole.held_out)]


def all_in_memory(name: str) -> list[tuple[int, ...]]:
    """Both parts, sorted: of few blocks `lib.text` holds out one whose hash would not ask for it."""
    return sorted(itertools.chain(*in_memory(name)))


def all_streamed(name: str) -> list[tuple[int, ...]]:
    return sorted(itertools.chain(*(rows(stream(name, held_out=h)) for h in (False, True))))


# --- the same sequences as lib.text


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "txt"])
def test_cut_and_packed_as_by_lib_text(tmp_path, suffix):
    name = write(tmp_path, PARAGRAPHS * 3, suffix)
    assert all_streamed(name) == all_in_memory(name)
    found = rows(stream(name, buffer=0))
    assert len(found) > 100
    tokenizer = tiny.tokenizer()
    ends, first = [], tokenizer(text.blocks(name)[0], add_special_tokens=False)["input_ids"]
    for start in range(0, len(first), LENGTH - 2):  # the order of the file
        ends.append((tokenizer.cls_token_id, *first[start : start + LENGTH - 2], tokenizer.sep_token_id))
    assert found[: len(ends) - 1] == ends[:-1]


def test_lines_are_paragraphs_where_no_blank_line_stands(tmp_path):
    path = tmp_path / "lines.txt"
    for content in ("\n".join(PARAGRAPHS), "\ufeff\n" + "\n".join(PARAGRAPHS) + "\n\n",
                    "\n \n".join(f"{a}\n{b}" for a, b in zip(PARAGRAPHS[::2], PARAGRAPHS[1::2], strict=True))):
        path.write_text(content)
        assert all_streamed(str(path)) == all_in_memory(str(path))


def test_documents_long_rows_and_rows_that_are_no_text(tmp_path):
    path = tmp_path / "own.parquet"
    texts = [*PARAGRAPHS[:300], None, "", " ".join(PARAGRAPHS), *PARAGRAPHS[300:]]
    pd.DataFrame({"text": texts, "source": [str(i // 7) for i in range(len(texts))]}).to_parquet(path)
    assert all_streamed(str(path)) == all_in_memory(str(path))


@pytest.mark.parametrize("name", ["wiki_paragraphs", pytest.param("wikitext2", marks=pytest.mark.slow)])
def test_real_corpora_are_cut_as_by_lib_text(monkeypatch, name):
    if not (CORPORA and all((Path(CORPORA) / f).exists() for f in text.CORPORA[name][0])):
        pytest.skip(f"{CORPORA or 'no folder'} holds no {name}; set CORPORA_DIR")
    monkeypatch.setenv("CORPORA_DIR", CORPORA)
    for held_out, wanted in zip((False, True), in_memory(name, length=64), strict=True):
        one = streaming.Stream(streaming.source(name), tiny.tokenizer(), 64, buffer=1000, held_out=held_out)
        found = rows(one)
        assert set(wanted) <= set(found)
        if not held_out:  # of the held-out part text.load keeps 20,000 tokens
            assert set(found) == set(wanted)
            assert len(wanted) <= len(found) <= len(wanted) * 1.02  # a block that stands twice comes twice


def test_a_saved_beginning_is_what_a_general_stage_would_read(tmp_path, folders, capsys):
    out = tmp_path / "out.parquet"
    assert streaming.main([folders(3), str(out), "--characters", "1000000000"]) == 0
    assert str(out) in capsys.readouterr().out
    assert all_in_memory(str(out)) == all_streamed(folders(3))
    assert streaming.main([folders(3), str(out), "--characters", "5000"]) == 0
    frame = pd.read_parquet(out)
    assert frame["text"].tolist() == [" ".join(p.split()) for p in PARAGRAPHS[: len(frame)]]
    assert 5000 <= frame["text"].str.len().sum() < 5000 + max(map(len, PARAGRAPHS))
    assert list(tmp_path.iterdir()) == [out]


# --- ranks


@pytest.mark.parametrize(("shards", "world"), [(1, 1), (1, 3), (4, 2), (3, 2), (2, 5)])
@pytest.mark.parametrize("buffer", [0, 40])
def test_every_sequence_comes_once_over_all_ranks(folders, shards, world, buffer):
    parts = [rows(stream(folders(shards), rank=r, world=world, buffer=buffer)) for r in range(world)]
    whole = rows(stream(folders(shards), buffer=0))
    assert sorted(itertools.chain(*parts)) == sorted(whole)
    assert all(len(p) > len(whole) / world / 3 for p in parts)


# --- order


def test_one_seed_one_order_and_every_pass_another(folders):
    a, b, other = (stream(folders(4), seed=s) for s in (1, 1, 2))
    first, second = rows(a), rows(a)
    assert [first, second] == [rows(b), rows(b)]
    assert first != second
    assert rows(other) != first
    assert sorted(first) == sorted(second) == sorted(rows(other))
    straight = stream(folders(4), buffer=0)
    ordered = rows(straight)
    assert ordered == rows(straight) != first
    near = [abs(ordered.index(x) - i) for i, x in enumerate(first)]
    assert sum(near) / len(near) > 40  # files change places, too: farther than one window


# --- resumed


@pytest.mark.parametrize(("shards", "world", "buffer"), [(3, 1, 40), (1, 2, 40), (4, 2, 40), (3, 1, 0)])
def test_resumed_is_as_uninterrupted(folders, shards, world, buffer):
    def make():
        return stream(folders(shards), rank=world - 1, world=world, buffer=buffer, seed=7)

    whole = make()
    wanted = rows(whole) + rows(whole)
    a_pass = len(wanted) // 2
    for stop in (0, 1, 40, 97, a_pass - 1, a_pass, a_pass + 60):
        first = make()
        taken = rows(itertools.islice(itertools.chain(first, first), stop))
        state = json.loads(json.dumps(first.state_dict()))
        again = make()
        again.load_state_dict(state)
        rest = rows(again)
        while len(taken) + len(rest) < len(wanted):
            rest += rows(again)
        assert taken + rest == wanted, stop


def test_encoded_takes_the_next_ones(folders):
    one, other = stream(folders(2)), stream(folders(2))
    parts = [one.encoded(500) for _ in range(4)]
    found = [ids for p in parts for ids in p.inputs["input_ids"]]
    assert found == list(itertools.islice(other, len(found)))
    assert all(500 <= p.lengths.sum() < 500 + LENGTH for p in parts)
    left = one.encoded(10**9)
    assert [*found, *left.inputs["input_ids"]] == rows_as_lists(stream(folders(2)))
    assert one.state_dict()["pass"] == 1
    assert (left.labels == 0).all()


def rows_as_lists(sequences) -> list[list[int]]:
    return [list(ids) for ids in sequences]


def test_a_state_of_another_stream_is_refused(folders):
    state = stream(folders(2)).state_dict()
    for changes in ({"seed": 1}, {"buffer": 41}, {"rank": 1, "world": 2}, {"held_out": True}):
        with pytest.raises(InputError, match="state: it is of another stream"):
            stream(folders(2), **changes).load_state_dict(state)
    for wrong in (None, {}, [], {"made_for": 1}):
        with pytest.raises(InputError, match="state: "):
            stream(folders(2)).load_state_dict(wrong)


def test_memory_is_that_of_a_window_not_of_the_corpus(tmp_path):
    """Three times the text takes hardly more Python memory: what grows is the index of the file's row groups."""

    def peak(times: int) -> int:
        name = write(tmp_path, PARAGRAPHS * times, "parquet", f"x{times}")
        next(iter(stream(name)))  # what is imported at the first row is not counted
        one = stream(name)
        tracemalloc.start()
        count = sum(1 for _ in one)
        assert count > 100 * times
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(24) < 1.6 * peak(8)  # the smaller one already fills a chunk


# --- wrong input


@pytest.mark.parametrize(("make", "message"), [
    (lambda f: str(f / "no.txt"), "no such file"), (lambda f: "news", "cannot be streamed"),
    (lambda f: "nwes", "unknown"), (lambda f: str(f), "holds no file that ends in"),
    (lambda f: write(f, ["a"], "parquet")[:-7] + "csv", "no such file"),
    (lambda f: "hub:nobody/nothing-at-all", "cannot be opened"),
    (lambda f: write(f, [], "parquet"), "cannot be read"), (lambda f: write(f, [], "txt"), "holds no text"),
])
def test_what_is_no_source_is_one_line(tmp_path, make, message):
    with pytest.raises(InputError, match=message) as e:
        streaming.source(make(tmp_path))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("name", "content"), [
    ("a.parquet", b"PAR1 no"), ("a.jsonl", b'{"text": "a"\n{'), ("a.txt", b"good film\n\xff\xfe\n"),
    ("a.csv", b"a,b\n")])
def test_files_that_cannot_be_read_are_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"a\.(parquet|jsonl|txt|csv)") as e:
        streaming.source(str(tmp_path / name))
    assert "\n" not in str(e.value)


def test_kinds_are_not_mixed_and_a_late_fault_names_the_text(tmp_path):
    write(tmp_path, PARAGRAPHS[:200], "parquet")
    write(tmp_path, PARAGRAPHS[:200], "jsonl")
    with pytest.raises(InputError, match="its files end in .jsonl, .parquet; allowed: one of"):
        streaming.source(str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        list(stream(str(tmp_path)))


@pytest.mark.parametrize(("changes", "message"), [
    ({"rank": 2, "world": 2}, "rank: 2 is not one of the 2 processes"), ({"rank": -1}, "rank: -1"),
    ({"world": 0}, "world: 0"), ({"seed": -1}, "seed: -1"), ({"buffer": -1}, "buffer: -1")])
def test_numbers_out_of_range(folders, changes, message):
    with pytest.raises(InputError, match=message):
        stream(folders(1), **changes)


def test_lengths_that_do_not_fit(folders):
    for length in (5, tiny.POSITIONS + 1):
        with pytest.raises(InputError, match=f"text_length: {length}"):
            streaming.Stream(streaming.source(folders(1)), tiny.tokenizer(), length)


def test_the_command_refuses_in_one_line(tmp_path, folders, capsys):
    for words, message in (([folders(1), str(tmp_path / "x.csv")], "must end in .parquet"),
                           ([folders(1), str(tmp_path / "x.parquet"), "--characters", "0"], "--characters: 0"),
                           ([str(tmp_path / "none"), str(tmp_path / "x.parquet")], "no such file")):
        assert streaming.main(words) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_overlap_check_still_applies_to_what_was_saved(tmp_path, folders, films):
    """A saved stream is a user's own file: rows that are scored are refused as in any other."""
    out = tmp_path / "out.parquet"
    rows_of_task = data.load(films)
    scored = rows_of_task.scored["text"]
    write(tmp_path, [*PARAGRAPHS[:50], *scored], "jsonl", "mixed")
    streaming.save(streaming.source(str(tmp_path / "mixed.jsonl")), out, 10**9)
    with pytest.raises(InputError, match="rows that task films is scored on"):
        text.refuse_overlap(str(out), rows_of_task)
