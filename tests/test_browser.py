"""The built book in a real browser, opened from the disc: nothing is asked of the network, and everything works.

Needs playwright (requirements-browser.txt; `make test-slow` installs it) and a Chromium of the system; axe-core comes
from npm. What is missing is named by the skip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from synthetic_records import book_folder, put, record, results_folder

from lib.claims.verdicts import WORDS
from lib.paths import ROOT
from lib.reporting import bookcheck

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: requirements-browser.txt")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")]
TABLE = "#table-glue-minilm-l6"
EVIL = "<script>x"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """A built book: three tasks, three methods of different scores, a study, a demo, a hostile file name."""
    folder = tmp_path_factory.mktemp("browser")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_RESULTS", str(results_folder(folder / "results")))
        patch.setenv("BERT_BOOK", str(book_folder(folder / "book")))
        for i, task in enumerate(("cola", "mrpc", "rte")):
            for seed in range(3):
                shared = {"task": task, "seed": seed, "majority": 40.0}
                put(record("bert", score=66 + seed / 10, **shared), record("theseus", score=60 + i + seed, **shared),
                    record("truncated", score=61 - i + seed, **shared),
                    record("kd", score=50 + seed / 10, tokens=900_000, **shared))  # fmt: skip
        put(record(variant="constant", score=58.0, majority=40.0))
        put(record(profile="demo", task="movies", score=70.0, teacher=80.0, command=f"papermill {EVIL} <b>&amp;"))
        (folder / "results" / "runs" / f"{EVIL}.json").write_text("{")
        done = subprocess.run([sys.executable, "-m", "lib.book", "build"], cwd=ROOT, capture_output=True, text=True,
                              env=os.environ.copy())  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "book" / "_build" / "html"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, html):
    """`visit(name, ...)` opens a page in a context of its own; complaints and foreign requests fail the test."""
    wrong, contexts = [], []

    def say(message) -> None:
        if message.type in ("error", "warning"):
            wrong.append(f"console: {message.text}")

    def ask(request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            wrong.append(f"request: {request.url}")

    def open_page(name="comparison", **options):
        context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light"} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", say)
        page.on("pageerror", lambda e: wrong.append(f"error: {e}"))
        page.on("request", ask)
        if options.get("java_script_enabled", True):  # without it the browser gives up what scripts had asked for
            page.on("requestfailed", lambda r: wrong.append(f"failed: {r.url}"))
        page.on("dialog", lambda d: (wrong.append(f"dialog: {d.message}"), d.dismiss()))
        page.goto(f"{(html / name).as_uri()}.html" if "?" not in name else (html / name.split("?")[0]).as_uri()
                  + ".html?" + name.split("?")[1])  # fmt: skip
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def column(page, index: int) -> list[str]:
    """Row heads of the comparison with what the cell of a column shows first, the rows that are seen alone."""
    return page.eval_on_selector_all(
        f"{TABLE} tbody tr", "(rows, i) => rows.filter(r => !r.hidden).map(r => r.cells[i].innerText.trim())", index)


def shown(page) -> list[str]:
    return column(page, 0)


def head(page, index: int):
    return page.locator(f"{TABLE} th[data-column='{index}']")


def test_every_page_opens_whole_on_a_screen_and_on_a_phone(visit, html):
    for name in [*bookcheck.pages_of(html.parents[1]), "search"]:
        page = visit(name)
        for size in (WIDE, PHONE):
            page.set_viewport_size(size)
            over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert over <= 0, f"{name}: {over} pixels wider than {size['width']}"
        assert page.locator("h1:visible").count() > 0, f"{name}: no heading"
        page.context.close()


def test_equations_are_set_without_a_network(visit):
    page = visit("tinybert")
    page.wait_for_selector("mjx-container svg, mjx-container mjx-math", state="attached", timeout=20000)


def test_a_head_sorts_up_down_and_back(visit):
    page = visit()
    first = shown(page)
    assert first[-1] == "Majority class"
    ours = 6  # "Ours, RTE": theseus 63, truncated 60, kd 50.1
    button = head(page, ours).locator("button")
    button.click()
    assert head(page, ours).get_attribute("aria-sort") == "ascending"
    up = shown(page)
    assert up[:4] == ["Vanilla KD", "Truncated, fine-tuned", "BERT-of-Theseus", "Teacher: BERT, fine-tuned"]
    assert up[-1] == "Majority class"  # stays last
    button.press("Enter")  # by keyboard
    assert head(page, ours).get_attribute("aria-sort") == "descending"
    assert shown(page)[:4] == up[:4][::-1]
    assert column(page, ours)[4] == "not run"  # and what has no number comes after all that has one
    head(page, 0).locator("button").press("Space")
    assert head(page, ours).get_attribute("aria-sort") == "none"
    assert shown(page)[0] == "BERT-of-Theseus"  # by name, in the alphabet
    head(page, 0).locator("button").click()
    head(page, 0).locator("button").click()
    assert head(page, 0).get_attribute("aria-sort") == "none"
    assert shown(page) == first


def test_fields_filter_methods_tasks_and_words(visit):
    page = visit()
    box = page.locator(f".bc-controls[data-for='{TABLE[1:]}']")
    everything = len(shown(page))
    box.get_by_label("Ours").select_option("yes")
    assert shown(page) == ["Teacher: BERT, fine-tuned", "Truncated, fine-tuned", "Vanilla KD", "BERT-of-Theseus",
                           "Majority class"]  # fmt: skip
    assert box.get_by_role("status").inner_text() == f"5 of {everything} rows"
    box.get_by_label("Methods").select_option("paper")
    assert shown(page) == ["BERT-of-Theseus", "Majority class"]
    box.get_by_label("Methods").select_option("")
    box.get_by_label("Ours").select_option("")
    box.get_by_label("Search").fill("bert theseus")
    assert shown(page) == ["BERT-of-Theseus"]
    box.get_by_label("Search").fill("nobody")
    assert box.get_by_role("status").inner_text() == f"none of {everything} rows fits"
    box.get_by_label("Search").fill("")
    box.get_by_label("Task").select_option("mrpc")
    assert page.locator(f"{TABLE} thead th").filter(visible=True).all_inner_texts()[1].startswith("MRPC")
    assert page.locator(f"{TABLE} tbody tr >> nth=1 >> td").filter(visible=True).count() == 3


def test_views_change_what_a_cell_shows_and_what_it_sorts_by(visit):
    page = visit()
    show = page.locator(".bc-controls").first.get_by_label("Show")
    assert "score:" not in page.locator(TABLE).inner_text()  # one view at a time needs no names
    show.select_option("retention")
    assert column(page, 6)[6].startswith("95.5")  # theseus on RTE: 63 of 66
    show.select_option("tokens")
    assert "to truncated" in column(page, 6)[6]
    assert "not equal to the 100,000 of the others" in column(page, 6)[2]
    head(page, 6).locator("button").click()
    assert shown(page)[0] == "Truncated, fine-tuned"  # kd has the lowest score, but not at equal tokens
    show.select_option("difference")
    assert re.match(r"-0\.5", column(page, 6)[shown(page).index("BERT-of-Theseus")])


def test_a_record_can_be_opened_from_its_cell_and_found_on_the_provenance_page(visit):
    page = visit()
    cell = page.locator(f"{TABLE} tbody tr", has_text="BERT-of-Theseus").locator("td >> nth=5")
    cell.locator("summary").click()
    assert cell.locator(".bc-command").first.is_visible()
    cell.get_by_role("link", name="record").first.click()
    page.wait_for_url("**/records/glue/minilm-l6/rte/theseus/seed-0.json")
    assert '"method": "theseus"' in page.locator("body").inner_text()
    page.go_back()
    cell = page.locator(f"{TABLE} tbody tr", has_text="BERT-of-Theseus").locator("td >> nth=5")
    if cell.locator("details").get_attribute("open") is None:
        cell.locator("summary").click()
    cell.get_by_role("link", name="provenance").nth(1).click()
    page.wait_for_url("**/provenance.html#run-glue-minilm-l6-rte-theseus-1")
    assert page.locator("tr:target").is_visible()


def test_a_link_into_a_filtered_row_shows_it(visit):
    page = visit("provenance")
    page.locator(".bc-controls").first.get_by_label("Method").select_option("kd")
    row = page.locator("[id='run-glue-minilm-l6-rte-theseus-1']")
    assert not row.is_visible()
    page.evaluate("location.hash = 'run-glue-minilm-l6-rte-theseus-1'")
    row.wait_for(state="visible")


def test_a_command_is_copied_or_at_least_selected(visit):
    page = visit("run")
    button = page.get_by_role("button", name="Copy the command").first
    button.click()
    page.wait_for_function("['Copied', 'Selected'].includes(document.querySelector('.bc-copy').textContent)")


def test_the_search_finds_a_page(visit):
    page = visit("search?q=theseus")
    page.wait_for_selector("ul.search li a", timeout=20000)
    assert any("Theseus" in t for t in page.locator("ul.search li a").all_inner_texts())


def test_without_javascript_the_table_is_whole(visit):
    page = visit("comparison", java_script_enabled=False)
    assert not page.locator(".bc-controls").first.is_visible()
    text = page.locator(TABLE).inner_text()
    for name in ("score:", "retention, % of the teacher:", "difference to reported:", "score at equal tokens:"):
        assert name in text
    assert page.locator(f"{TABLE} tbody tr").filter(visible=True).count() == 13


def test_dark_mode_follows_the_reader(visit):
    def colours(page):
        look = "const c = getComputedStyle(document.querySelector(s)); return [c.backgroundColor, c.color]"
        return page.evaluate(f"['body', '.bc-table td'].map(s => {{ {look} }})")

    light, dark = visit(), visit(color_scheme="dark")
    assert colours(light)[0] != colours(dark)[0]
    assert colours(light)[1][1] != colours(dark)[1][1]


def test_on_paper_no_fields_are_printed_and_nothing_scrolls(visit):
    page = visit()
    page.emulate_media(media="print")
    assert not page.locator(".bc-controls").first.is_visible()
    assert page.eval_on_selector(".bc-scroll", "e => getComputedStyle(e).overflowX") == "visible"


@pytest.mark.parametrize("script", [True, False])
def test_on_paper_everything_is_unfolded(visit, script):
    """With the script by its handler, without it by the style sheet."""
    page = visit("theseus", java_script_enabled=script)
    cell = page.locator("article details .bc-table td").first
    assert not cell.is_visible()
    if script:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("article details:not([open])").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("article details[open]").count() == 0
    page.emulate_media(media="print")
    assert cell.is_visible()


def test_the_comparison_takes_the_window_and_its_heads_stay(visit):
    page = visit()
    box = page.locator(".bc-scroll").first
    assert box.bounding_box()["width"] > 0.7 * WIDE["width"]
    top = page.locator(f"{TABLE} thead th").first
    box.evaluate("e => { e.scrollIntoView(); e.scrollTop = 200; }")
    if box.evaluate("e => e.scrollTop") > 0:
        assert abs(top.bounding_box()["y"] - box.bounding_box()["y"]) < 3


LAPTOP = {"width": 1300, "height": 900}


@pytest.mark.parametrize("name", ["claims", "provenance"])
def test_a_wide_table_fits_a_laptop_or_scrolls_in_its_own_box(visit, name):
    page = visit(name, viewport=LAPTOP)
    for box in page.locator(".bc-scroll").all():
        place = box.bounding_box()
        assert place["x"] + place["width"] <= LAPTOP["width"]
        over = box.evaluate("e => e.scrollWidth - e.clientWidth")
        if name == "claims":
            assert over <= 1, f"{over} pixels wider than its column"
        assert box.evaluate("e => getComputedStyle(e).overflowX") == "auto"
    head = page.locator(".bc-table tbody th").first
    assert head.evaluate("e => getComputedStyle(e).position") == "sticky"  # the name of a row stays in sight


def test_claims_are_sorted_and_filtered(visit):
    page = visit("claims", viewport=LAPTOP)
    table = page.locator("#claims-table")
    box = page.locator(".bc-controls[data-for='claims-table']")
    box.get_by_label("Paper").select_option("tinybert")
    rows = table.locator("tbody tr:visible")
    assert 0 < rows.count() < table.locator("tbody tr").count()
    assert set(rows.evaluate_all("rows => rows.map(r => r.dataset.paper)")) == {"tinybert"}
    table.locator("th[data-column='1'] button").click()
    words = [w[2:] for w in rows.locator("td:first-of-type > strong").all_inner_texts()]
    assert words == sorted(words, key=WORDS.index)
    assert len(set(words)) > 1


@pytest.mark.parametrize("size", [LAPTOP, {"width": 400, "height": 800}], ids=["laptop", "phone"])
def test_no_name_of_the_picture_lies_on_another(visit, size):
    page = visit("index", viewport=size)
    names = page.eval_on_selector_all(
        ".bc-picture >> nth=0 >> svg text",
        "all => all.map(e => [e.textContent, e.getBoundingClientRect()])"
        ".map(([t, b]) => [t, b.left, b.right, b.top, b.bottom])")  # fmt: skip
    assert len(names) > 15
    on = [f"{a[0]} / {b[0]}" for i, a in enumerate(names) for b in names[i + 1 :]
          if a[1] < b[2] and b[1] < a[2] and a[3] < b[4] - 1 and b[3] < a[4] - 1]  # fmt: skip
    assert on == []


def test_names_from_users_show_as_text(visit):
    page = visit("index")
    assert page.get_by_text(f"results/runs/{EVIL}.json").count() == 1
    page = visit("provenance")
    assert page.get_by_text(f"papermill {EVIL} <b>&amp;").count() == 1


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The source of axe-core: `$AXE_CORE` (a file), else from npm."""
    if os.environ.get("AXE_CORE"):
        with open(os.environ["AXE_CORE"], encoding="utf-8") as f:
            return f.read()
    folder = tmp_path_factory.mktemp("axe")
    if not shutil.which("npm"):
        pytest.skip("no npm to fetch axe-core with")
    done = subprocess.run(["npm", "pack", "axe-core@4.14.1"], cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"axe-core could not be had from npm: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as f:
        return f.extractfile("package/axe.min.js").read().decode()


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", WIDE), ("light", PHONE), ("dark", PHONE)],
                         ids=["light", "dark", "light-phone", "dark-phone"])
def test_no_page_breaks_the_rules_of_axe(visit, html, axe, scheme, size):
    """All rules of axe-core on every page; the notebooks' pages are alike, and one of them stands for all."""
    names = [n for n in bookcheck.pages_of(html.parents[1]) if "/" not in n] + ["executed/theseus"]
    said = []
    for name in names:
        page = visit(name, color_scheme=scheme, viewport=size)
        page.evaluate("Promise.all(document.getAnimations().map(a => a.finished))")  # colours fade to the dark ones
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {preload: false})")["violations"]
        said += [f"{name}: {v['id']}: {n['html'][:160]}" for v in found for n in v["nodes"]]
        page.context.close()
    assert not said, "\n".join(said)
