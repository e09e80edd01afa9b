"""Unlabelled text: what is drawn, how it is cut, what a name may be, and that it holds no scored sentence."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny

from lib import data, text
from lib.errors import InputError
from lib.parameters import validate

PARAGRAPHS = [t for t, _, _ in tiny.rows(500, seed=3)]


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("\n\n".join(PARAGRAPHS))
    return str(path)


@pytest.fixture
def tokenizer():
    return tiny.tokenizer()


def rows(encoded):
    return [tuple(ids) for ids in encoded.inputs["input_ids"]]


def test_sequences_fit_length_and_budget(own, tokenizer):
    t = text.load(own, tokenizer, max_length=24, max_tokens=1500)
    assert t.train.lengths.max() == 24
    assert 1500 - 24 < t.tokens <= 1500
    assert t.tokens == sum(len(r) for r in rows(t.train))
    for r, mask in zip(rows(t.train), t.train.inputs["attention_mask"], strict=True):
        assert (r[0], r[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert not set(r[1:-1]) & set(tokenizer.all_special_ids)
        assert len(r) >= text.SHORTEST + 2
        assert mask == [1] * len(r)
    assert (t.train.labels == 0).all()
    assert t.train.labels.dtype == np.int64


def test_nothing_is_lost_or_doubled_but_short_ends(own, tokenizer):
    t = text.load(own, tokenizer, max_length=24, max_tokens=10**7)
    whole = [tokenizer(b, add_special_tokens=False)["input_ids"] for b in text.blocks(own)]
    inside = sum(len(r) - 2 for r in [*rows(t.train), *rows(t.held_out)])
    ends = sum(len(ids) % 22 for ids in whole if len(ids) % 22 < text.SHORTEST)
    held_out_left = sum(map(len, whole)) - ends - inside
    # the held-out part has a cap of its own, the training part had none
    assert held_out_left >= 0
    joined = {tuple(ids[i : i + 22]) for ids in whole for i in range(0, len(ids), 22)}
    assert all(tuple(r[1:-1]) in joined for r in rows(t.train))


def test_training_and_held_out_are_disjoint(own, tokenizer):
    t = text.load(own, tokenizer, 24, 10**6)
    assert not set(rows(t.train)) & set(rows(t.held_out))
    assert 0 < t.held_out.lengths.sum() < t.tokens


def test_the_choice_is_nested_and_repeats(own, tokenizer):
    small, large = (text.load(own, tokenizer, 24, n) for n in (1200, 3000))
    assert rows(large.train)[: len(small.train) - 1] == rows(small.train)[:-1]
    assert set(rows(small.train)) <= set(rows(large.train))
    assert text.load(own, tokenizer, 24, 1200).sha256 == small.sha256 != large.sha256


def apart(path, paragraphs):
    """A file each row of which is a document, and so a block, of its own."""
    pd.DataFrame({"text": paragraphs, "source": [str(i) for i in range(len(paragraphs))]}).to_parquet(path)
    return str(path)


def test_the_order_is_that_of_the_hash_not_of_the_file(tmp_path, tokenizer):
    a, b = (text.load(apart(tmp_path / f"{n}.parquet", ps), tokenizer, 24, 800).sha256
            for n, ps in (("a", PARAGRAPHS), ("b", PARAGRAPHS[::-1])))
    assert a == b


def test_joined_texts_share_equally_while_they_last(tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, ps in (("few", PARAGRAPHS[:60]), ("many", PARAGRAPHS[60:])):
        apart(f"{name}.parquet", ps)
    few, many = (set(rows(text.load(f"{n}.parquet", tokenizer, 24, 10**6).train)) for n in ("few", "many"))
    both = text.load("few.parquet+many.parquet", tokenizer, 24, 1000).train
    counts = [sum(len(r) for r in rows(both) if r in part) for part in (few, many)]
    assert abs(counts[0] - counts[1]) <= 24
    assert sum(counts) == both.lengths.sum()
    everything = text.load("few.parquet+many.parquet", tokenizer, 24, 10**6).train
    assert set(rows(everything)) == few | many


def test_formats_say_the_same(tmp_path, own, tokenizer):
    frame = pd.DataFrame({"n": range(len(PARAGRAPHS)), "text": PARAGRAPHS})
    frame.to_parquet(tmp_path / "own.parquet")
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps({"text": p}) for p in PARAGRAPHS))
    found = {text.load(str(tmp_path / f"own.{s}"), tokenizer, 24, 900).sha256 for s in ("txt", "jsonl", "parquet")}
    assert len(found) == 1


def test_a_long_row_is_drawn_in_pieces():
    words = " ".join(PARAGRAPHS)
    pieces = list(text._cut(words))
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= 1.5 * text.BLOCK
    assert " ".join(pieces) == words
    assert list(text._cut("x" * 10 * text.BLOCK))[0] == "x" * text.BLOCK


def test_wikitext_headings_and_marks():
    assert text._clean(" = = A heading = = \n", "wikitext2") == ""
    assert text._clean(" 1 @,@ 000 light @-@ years , 2 @.@ 5 \n", "wikitext2") == "1,000 light-years , 2.5"
    assert text._clean("= kept elsewhere", "gutenberg") == "= kept elsewhere"


def test_key_follows_file_tokenizer_and_size(own, tokenizer):
    before = text.key(own, tokenizer, 24, 1000)
    assert text.key(own, tokenizer, 24, 1000) == before
    assert text.key(own, tokenizer, 24, 1001) != before
    assert text.key(own, tokenizer, 25, 1000) != before
    tokenizer(["a b"], padding=True, truncation=True, max_length=8)  # what a call sets is not what the tokenizer is
    assert text.key(own, tokenizer, 24, 1000) == before
    Path(own).write_text("\n\n".join(PARAGRAPHS[1:]))
    os.utime(own, (1, 1))
    assert text.key(own, tokenizer, 24, 1000) != before


@pytest.mark.parametrize(("name", "content", "message"), [
    ("gutenburg", None, "text: 'gutenburg' is unknown (did you mean 'gutenberg'?)"),
    ("gutenberg", None, "text gutenberg: set CORPORA_DIR"),
    ("absent.txt", None, "text absent.txt: no such file"),
    ("empty.txt", b"", "text empty.txt: holds no text"),
    ("blank.txt", b" \n\n \n", "text blank.txt: holds no text"),
    ("latin.txt", "caf\u00e9 ".encode("latin-1"), "text latin.txt: is not UTF-8 (byte 3)"),
    ("a.docx", b"x", "unknown format '.docx'; allowed: .txt, .jsonl, .parquet"),
    ("a.jsonl", b'{"x": 1, "y": 2}\n', "no column 'text' among x, y"),
    ("two.jsonl", b'{"x": "a", "y": "b"}\n', "no column 'text' among x, y"),
    ("bad.jsonl", b"{not json", "text bad.jsonl: cannot be read"),
    ("bad.parquet", b"PAR1 and no more", "text bad.parquet: cannot be read"),
    ("short.txt", b"one two", "text short.txt: is too short"),
    ("news+absent.txt", None, "text absent.txt: no such file"),
])
def test_bad_names_and_files(name, content, message, tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORPORA_DIR", raising=False)
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(InputError) as e:
        text.load(name, tokenizer, 24, 1000)
    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_parameters_of_a_general_stage():
    p = validate(text.General, {"general_lr": "5e-4"})
    s = text.settings(p, "x", lr=1.0)
    assert (s.seed, s.lr, s.batch_size) == (0, 1.0, p.general_batch_size)
    with pytest.raises(InputError, match="parameter text_tokens: 10 "):
        validate(text.General, {"text_tokens": 10})


def test_overlap_finds_whole_sentences_only():
    held = "The cat sat on the mat, and the dog slept."
    assert text.overlap(["Once: the CAT sat on the mat and the dog slept -- he said."], [held]) == [held]
    assert text.overlap(["The cat sat on the mat and the dog woke."], [held]) == []
    assert text.overlap(["short one"], ["short one"]) == []
    assert text.overlap([held], ["Too short to say"]) == []


def test_own_text_with_scored_rows_is_refused(tmp_path, films):
    rows = data.load(films)
    long = next(t for t in rows.scored["text"] if len(text._words(t)) >= 8)
    clean, dirty = tmp_path / "clean.txt", tmp_path / "dirty.txt"
    clean.write_text("something that was never scored by anyone at all, I should think\n\nand more")
    dirty.write_text(f"before\n\n{long.upper()} and after")
    text.refuse_overlap(str(clean), rows)
    with pytest.raises(InputError, match="holds 1 of the rows that task films is scored on"):
        text.refuse_overlap(str(dirty), rows)


def _scored() -> dict[str, list[str]]:
    out = {t: list(data.load(t).scored["text"]) for t in ("movies", "trec")}
    for path in sorted(Path(os.environ["GLUE_DIR"]).glob("*/*.parquet")):
        if path.stem.startswith(("validation", "test", "heldout")):
            frame = pd.read_parquet(path)
            columns = [c for c in frame.columns if c not in ("idx", "label")]
            out[f"{path.parent.name}/{path.stem}"] = [s for c in columns for s in frame[c].astype(str)]
    return out


@pytest.mark.slow
@pytest.mark.skipif(not (os.environ.get("CORPORA_DIR") and os.environ.get("GLUE_DIR")),
                    reason="needs CORPORA_DIR and GLUE_DIR: counts scored sentences in the declared texts")
def test_declared_texts_hold_no_scored_sentence():
    scored = [s for sentences in _scored().values() for s in sentences]
    for name in (text.NEWS, *text.CORPORA):
        assert text.overlap(text.blocks(name), scored) == [], name
