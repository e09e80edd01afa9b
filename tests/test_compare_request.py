"""What a comparison is asked for, and what it refuses: one line, code 2, before anything is trained or left."""

from __future__ import annotations

import pytest
import tiny
from compare_runs import ask

from lib import compare
from lib.compare import request as compare_plan
from lib.errors import InputError

# Words


@pytest.mark.parametrize(("words", "message"), [
    (["--methods", "truncatd"], "METHODS: 'truncatd' is unknown (did you mean 'truncated'?)"),
    (["--methods", ""], "METHODS: '' names no student"),
    (["--methods", "bert"], "METHODS: 'bert' names no student"),
    (["--minutes", "soon"], "MINUTES: 'soon' must be a number of minutes above 0"),
    (["--minutes", "0"], "MINUTES: '0' must be"), (["--minutes", "-3"], "MINUTES: '-3' must be"),
    (["--minutes", "nan"], "MINUTES: 'nan' must be"), (["--minutes", "inf"], "MINUTES: 'inf' must be"),
    (["--task", " "], "TASK: is empty"), (["--speed", "1"], "unrecognized arguments: --speed 1"),
])
def test_words_that_are_refused(words, message, capsys):
    assert compare.main([*ask("movies"), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_empty_words_of_make_take_their_defaults():
    r = compare_plan.arguments(["--task", "my.csv", "--teacher", "", "--methods", "theseus,truncated bert theseus",
                                "--minutes", ""])
    assert (r.methods, r.minutes, r.needed) == (("theseus", "truncated"), 60, ("bert", "theseus", "truncated"))
    assert compare_plan.arguments(ask("my.csv", "--teacher", "folder")).needed == ("truncated", "theseus")


# Tasks, models and folders


def bad_tasks(folder, backbone):
    one = tiny.write_csv(folder / "one.csv", ("text", "label"), [(f"good film {i}", "yes") for i in range(50)])
    good = tiny.films(folder / "good.csv")
    other = tiny.save_classifier(folder / "other", ["red", "green"])
    three = tiny.save_classifier(folder / "three", ["negative", "positive", "none"])
    empty = folder / "hollow"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    taken = folder / "taken"
    taken.mkdir()
    (taken / "diary.txt").write_text("mine")
    b = ("--backbone", backbone)
    return [
        (ask(folder / "none.csv", *b), "none.csv"), (ask(one, *b), "one class only"),
        (ask(good, "--text-column", "words", *b), "text_column: column 'words' is missing"),
        (ask(good, "--kind", "ranking", *b), "kind"), (ask(good, "--max-length", "4", *b), "max_length"),
        (ask(good, "--seed", "x", *b), "seed"), (ask(good, "--lr", "2", *b), "lr"),
        (ask(good, "--seed", "1000", *b), "seed: 1000 is the seed with which"),
        (ask(good, "--teacher", str(other)), "are not those of task good"),
        (ask(good, "--teacher", str(three)), "has 3 outputs"), (ask(good, "--teacher", str(empty)), "no weights"),
        (ask(good, "--backbone", str(folder / "nowhere")), "no such folder"),
        (ask(good, *b, output=taken), "is not empty and holds no comparison"),
        (ask(good, *b, output=good), "is no folder that can be written to"),
        (ask(good, *b, output=good / "below"), "is no folder that can be written to"),
        (ask(good, *b, minutes="0.0001"), "MINUTES: 0.0001 is too short"),
    ]


def test_bad_input_is_one_line_code_2_and_leaves_nothing(places, backbone, hasty, capsys):
    for words, message in bad_tasks(places, backbone):
        assert compare.main(words) == 2, words
        said = capsys.readouterr().err.strip().splitlines()
        assert message in said[-1], (words, said)
        assert said[-1].startswith("error: ")
        assert not (places / "results").exists(), words
    assert hasty == []


def test_a_method_that_cannot_take_the_backbone_is_found_before_training(places, films, hasty, capsys):
    odd = tiny.save_encoder(places / "odd", layers=5)  # two modules of equal size cannot be made of five layers
    assert compare.main(ask(films, backbone=odd)) == 2
    assert "does not divide the backbone's 5 layers" in capsys.readouterr().err
    assert hasty == []
    assert not (places / "results").exists()


def test_a_method_that_breaks_while_measured_is_named(places, films, backbone, hasty, capsys, monkeypatch):
    from lib.methods import truncated

    monkeypatch.setattr(truncated, "compress", lambda run, teacher: 1 / 0)
    assert compare.main(ask(films, backbone=backbone)) == 2
    assert "METHODS: truncated failed in its first steps on these rows (ZeroDivisionError: 'division by zero')" in \
        capsys.readouterr().err
    assert hasty == []


def test_span_tasks_are_refused_before_anything_is_read(places, backbone):
    with pytest.raises(InputError, match="task squad1: answers with spans"):
        compare_plan.check(compare_plan.arguments(ask("squad1", backbone=backbone)))
