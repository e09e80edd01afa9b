"""Fixtures of all tests: folders to write to, tiny backbones on disc, small task files."""

import os

# Before torch is imported: tiny models are fastest on one thread. And no test talks to the network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["BERT_PROGRESS_SECONDS"] = "1e9"

import pytest


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Results and build go to the test's own folder, which is returned."""
    monkeypatch.setenv("BERT_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("BERT_BUILD", str(tmp_path / "build"))
    return tmp_path


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A folder for what tests share and never change."""
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture(scope="session")
def backbone(shelf):
    """A tiny random BERT (4 layers, width 32) with a WordPiece tokenizer, as a Hugging Face folder."""
    import tiny

    return str(tiny.save_encoder(shelf / "tiny-bert"))


@pytest.fixture(scope="session")
def encoder(shelf):
    """`encoder(kind)`: folder of a tiny backbone of an architecture, made once."""
    import tiny

    def make(kind: str) -> str:
        folder = shelf / f"tiny-{kind}"
        return str(folder if folder.exists() else tiny.save_encoder(folder, kind))

    return make


@pytest.fixture(scope="session")
def films(shelf):
    """A two-class CSV file of 150 rows."""
    import tiny

    return str(tiny.films(shelf / "films.csv"))


@pytest.fixture(scope="session")
def ratings(shelf):
    """A regression CSV file of 150 rows."""
    import tiny

    return str(tiny.ratings(shelf / "ratings.csv"))


@pytest.fixture
def theseus_run(places, films, backbone):
    """`theseus_run(**parameters)`: a started Theseus run on the tiny task; one teacher for all of a test's runs."""
    import tiny

    from lib.methods import theseus

    return lambda **changes: tiny.run("theseus", theseus.Config, films, backbone, **changes)


@pytest.fixture
def hasty(monkeypatch):
    """Comparisons (`lib.compare`) run in this process and time few rounds: the list of methods that were run."""
    import compare_runs

    return compare_runs.hasten(monkeypatch)
