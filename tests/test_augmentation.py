"""TinyBERT's augmentation: what may change and what may not, reproducible by seed, candidates from the right place."""

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModel

from lib import augmentation, fast, mlm
from lib.augmentation import Augmenter, Vectors
from lib.errors import InputError

PAIRS = [("The film, was GOOD... (really!)\t£5", ""),
         ("a sad plot; it's 100% xyz-bright?", "he saw a fine actor & 2 songs"),
         ("very bad music", "was the scene new")]


def model(seed=0):
    torch.manual_seed(seed)
    encoder = AutoModel.from_config(tiny.config(dropout=0.0), attn_implementation=fast.ATTENTION)
    return mlm.MaskedLM(encoder, mlm.Head.of(encoder)).eval()


def maker(**changes):
    return Augmenter(model(), tiny.tokenizer(), **{"candidates": 5, "max_length": 64, **changes})


def everything(copies=6):
    return [(row, copy) for copy in range(copies) for row in range(len(PAIRS))]


def skeleton(text):
    """The text without its words: what must stay."""
    return augmentation.WORD.split(text)


def test_only_words_change():
    rows = maker(replace=0.9).make(PAIRS, everything(), 0)
    assert {n.row for n in rows} == {0, 1, 2}
    for n in rows:
        for new, old in zip((n.text, n.text_2), PAIRS[n.row], strict=True):
            assert skeleton(new) == skeleton(old)
            assert len(augmentation.WORD.findall(new)) == len(augmentation.WORD.findall(old))
    assert any(n.text != PAIRS[1][0] and n.text_2 != PAIRS[1][1] for n in rows if n.row == 1)
    assert all(n.text_2 == "" for n in rows if n.row == 0)


def test_reproducible_by_seed_and_each_copy_by_itself():
    a, b = (maker().make(PAIRS, everything(), 3) for _ in range(2))
    assert a == b
    assert maker().make(PAIRS, everything(), 4) != a
    one = maker()
    alone = [n for w in everything() for n in one.make(PAIRS, [w], 3)]  # no other row or copy has a say
    assert list(dict.fromkeys(alone)) == a
    assert len(a) > 5


def test_no_copy_equals_its_row_or_another():
    rows = maker(replace=0.2, candidates=1).make(PAIRS, everything(40), 0)
    assert len(set(rows)) == len(rows) < 120
    assert all((n.text, n.text_2) != PAIRS[n.row] for n in rows)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.8])
def test_share_of_replaced_words(rate):
    """Draws are a coin a word: 4000 of them lie within four deviations of p_t."""
    one = maker(replace=rate)
    sentence = " ".join(["good"] * 10)
    drawn = [len(one.draws(sentence, np.random.default_rng([0, i]))) for i in range(400)]
    assert abs(np.mean(drawn) / 10 - rate) < 4 * np.sqrt(rate * (1 - rate) / 4000)


def test_candidates_of_a_single_piece_are_the_model_s_at_the_mask():
    """Oracle: one plain forward pass of the sentence with the word masked, ranked over the vocabulary."""
    one, sentence = maker(), "the film was really good"
    start = sentence.index("film")
    one.prepare({(sentence, start, start + 4), (sentence, 0, 3)})
    tokenizer = tiny.tokenizer()
    for word, begin in (("film", start), ("the", 0)):
        ids = tokenizer(sentence.replace(word, "[MASK]"), return_tensors="pt")
        place = int((ids["input_ids"][0] == tokenizer.mask_token_id).nonzero())
        with torch.no_grad():
            hidden = one.model.encoder(**ids).last_hidden_state[0, place]
            scores = one.model.head(hidden, one.model.encoder.get_input_embeddings().weight)
        names = tokenizer.convert_ids_to_tokens(scores.argsort(descending=True).tolist())
        best = [w for w in names if w and w.isalpha() and w not in tiny.SPECIAL and w != word]
        assert one.known[sentence, begin] == best[:5]


def test_batching_changes_no_candidate():
    """Sentences of unlike lengths in one padded batch, or each word alone."""
    words = {(s, a, b) for pair in PAIRS for s in pair for a, b in maker().words(s)}
    together, alone = maker(), maker(batch_tokens=1)
    together.prepare(words)
    alone.prepare(words)
    assert together.known == alone.known
    assert together.masked_tokens == alone.masked_tokens > 0


@pytest.mark.parametrize(("word", "pieces", "barred"), [
    ("xyz", ["x", "##y", "##z"], ["x"]),  # three letters: no candidate has fewer
    ("xy", ["x", "##y"], ["x"]),  # two letters: "he" may come, "e" may not
    ("filmx", ["film", "##x"], ["film"]), ("Themzé", ["the", "##m", "##z", "##e"], ["the"]),
    ("thew", ["the", "##w"], ["the", "he"]),
])  # fmt: skip
def test_word_of_several_pieces_takes_its_nearest_vectors(word, pieces, barred):
    """Oracle: cosine of the mean of the pieces' embeddings with every whole word that is long enough and no part."""
    one, sentence = maker(), f"a {word} was good"
    one.prepare({(sentence, 2, 2 + len(word))})
    tokenizer, table = tiny.tokenizer(), one.model.encoder.get_input_embeddings().weight.detach().numpy()
    assert tokenizer.tokenize(word) == pieces
    vector = table[tokenizer.convert_tokens_to_ids(pieces)].mean(0)
    whole = list(dict.fromkeys(w for w in tiny.VOCABULARY if w.isalpha()))
    rows = table[tokenizer.convert_tokens_to_ids(whole)]
    cosine = rows @ vector / np.linalg.norm(rows, axis=1) / np.linalg.norm(vector)
    nearest = [whole[i] for i in np.argsort(-cosine)]
    assert nearest[0] == barred[0]  # its own piece, which is no candidate
    fitting = [w for w in nearest if len(w) >= min(3, len(word)) and w not in "".join(pieces).replace("##", "")]
    assert one.known[sentence, 2] == fitting[:5]
    assert not set(barred) & set(fitting)
    assert one.masked_tokens == 0


def test_a_glove_file(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("xyz 1 0\n1990 1 0\n's 1 0\nxy 1 0\nnear 0.9 0.1\nfar -1 0\nother 0 1\n")
    one = maker(vectors=Vectors.read(str(path)), candidates=2)
    one.prepare({("an xyz, a zzz", 3, 6), ("an xyz, a zzz", 10, 13)})
    assert one.known["an xyz, a zzz", 3] == ["near", "other"]
    assert one.known["an xyz, a zzz", 10] == []  # not in the file: the word stays
    assert "glove.txt" in one.vectors.source


@pytest.mark.parametrize("content", [None, "", "a 1 2\nb 1\n", "a x y\n"])
def test_a_bad_vector_file_is_one_line(tmp_path, content):
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="word_vectors .*bad.txt: must be a file"):
        Vectors.read(str(path))


def test_code_variant_reads_the_sentence_beside_the_mask_and_skips_stop_words():
    plain, code = maker(), maker(with_original=True, skip_stop_words=True)
    assert [("the film was bad"[a:b]) for a, b in code.words("the film was bad")] == ["film", "bad"]
    assert len(plain.words("the film was bad")) == 4
    for one in (plain, code):
        one.prepare({("the film was bad", 4, 8)})
    assert code.masked_tokens == plain.masked_tokens + 5  # four words and a separator


def test_words_beyond_the_maximal_length_stay():
    one = maker(max_length=6, replace=1.0)
    new = one.make([("the film was good bad fine sad", "")], [(0, 0)], 0)[0]
    assert new.text.endswith(" bad fine sad")
    assert new.text.split()[:4] != ["the", "film", "was", "good"]


def test_whole_words_are_letters_and_one_piece():
    found = augmentation.whole_words(tiny.tokenizer(), tiny.SIZE)
    assert set(found.values()) == {w for w in tiny.VOCABULARY if w.isalpha()}
    assert all(tiny.VOCABULARY[i] == w for i, w in found.items())


def test_schedule_is_capped_and_goes_round():
    lengths = np.array([5, 10, 20, 5])
    whole = augmentation.schedule(lengths, 3, 10**6, 0)
    assert sorted(whole) == [(r, c) for r in range(4) for c in range(3)]
    assert [c for _, c in whole] == sorted(c for _, c in whole)
    for cap in (0, 4, 39, 40, 55, 120):
        part = augmentation.schedule(lengths, 3, cap, 0)
        assert part == whole[: len(part)]
        assert lengths[[r for r, _ in part]].sum() <= cap
    assert augmentation.schedule(lengths, 3, 10**6, 1) != whole


def test_a_tokenizer_without_mask_is_refused():
    tokenizer = tiny.tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="mask token"):
        Augmenter(model(), tokenizer)
