import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab.tables import SPECTRAL, summarise
from driftlab_analyses.report.build import build_report

NASTY = "model.layers.0.</script><b>&.weight"


def spectral_rows() -> list[dict[str, Any]]:
    rows = []
    for run, size in (("grpo", 1e-4), ("sdpo", 3e-4)):
        for order, label in enumerate(("math@10", "math@20"), 1):
            for i in range(12):
                name = NASTY if i == 0 else f"model.layers.{i}.mlp.up_proj.weight"
                value = size * order * (1 + 0.01 * i)
                rows.append({
                    "run": run, "label": label, "stage": "math", "step": 10 * order, "order": order, "matrix": name,
                    "layer": i, "role": "up_proj", "rows": 8, "cols": 4, "numel": 32, "status": "ok", "reason": "",
                    "nss": value, "nss_error": 1e-9, "nss_null": value / (1.5 if run == "sdpo" else 1.0),
                    "rel_frobenius": 2 * value, "mask_overlap": 0.99, "method": "tracked",
                })  # fmt: skip
    return rows


@pytest.fixture
def results(tmp_path: Path) -> ResultsDir:
    folder = ResultsDir.create(tmp_path / "out", command="svd", config={"null": "sign"}, argv=["svd", "<runs>"])
    table = pa.Table.from_pylist(spectral_rows(), schema=SPECTRAL)
    folder.write_table("spectral", table)
    folder.write_table("spectral_summary", summarise(table.to_pandas()))
    folder.finish()
    return folder


def test_the_page_loads_nothing_and_escapes_what_it_shows(results: ResultsDir, tmp_path: Path) -> None:
    page = build_report(results.path, tmp_path / "page.html").read_text()
    sources = re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)""", page)
    assert sources
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in sources)
    assert "@import" not in page
    assert "url(" not in page
    assert "<b>&.weight" not in page
    assert page.count("</script>") == 2  # the data's and the code's own
    assert "driftlab svd &lt;runs&gt;" in page


def test_findings_follow_the_numbers(results: ResultsDir, tmp_path: Path) -> None:
    page = build_report(results.path, tmp_path / "page.html").read_text()
    lines = re.findall(r'<li class="(\w+)"><span class="tag">([^<]+)</span> <span>([^<]+)</span>', page)
    stated = {text.split(" (")[0]: (kind, tag) for kind, tag, text in lines}
    assert stated["sdpo math@20: nss is above its null"] == ("separated", "separated")
    assert not any(text.startswith("grpo") for text in stated)  # its values equal their nulls: nothing to test


def test_an_existing_file_stays_unless_forced(results: ResultsDir, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("mine")
    with pytest.raises(ResultsError, match="--force"):
        build_report(results.path, file)
    assert file.read_text() == "mine"
    build_report(results.path, file, force=True)
    assert file.read_text().startswith("<!doctype html>")


def test_an_empty_results_folder_makes_no_page(tmp_path: Path) -> None:
    folder = ResultsDir.create(tmp_path / "out", command="svd", config={})
    with pytest.raises(ResultsError, match="no table yet"):
        build_report(folder.path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_same_tables_give_the_same_page(results: ResultsDir, tmp_path: Path) -> None:
    pages = [build_report(results.path, tmp_path / f"{i}.html").read_text() for i in range(2)]
    assert pages[0] == pages[1]


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    quiet = ("disable-background-networking", "disable-component-update", "disable-sync", "no-first-run")
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", *quiet):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield session
    session.quit()


def cells(table: Any, column: str) -> list[str]:
    names = [th.text for th in table.find_elements("css selector", "th")]
    at = next(i for i, name in enumerate(names, 1) if name.startswith(column))
    return [cell.text for cell in table.find_elements("css selector", f"tbody td:nth-child({at})")]


def click(browser: Any, table: Any, column: str) -> Any:
    heads = table.find_elements("css selector", "th")
    head = next(th for th in heads if th.text.startswith(column))
    browser.execute_script("arguments[0].querySelector('button').click()", head)
    return head


def test_tables_sort_and_filter_in_a_browser(results: ResultsDir, tmp_path: Path, browser: Any) -> None:
    page = build_report(results.path, tmp_path / "page.html")
    browser.get(page.as_uri())
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    table = browser.find_element("css selector", "#explorer-weights")
    assert NASTY in cells(table, "matrix")
    layers = cells(table, "layer")
    assert layers == [str(i) for i in range(12)]  # by number, though "10" < "2" as a text
    assert click(browser, table, "nss").get_attribute("aria-sort") == "ascending"
    assert cells(table, "layer") == layers
    assert click(browser, table, "nss").get_attribute("aria-sort") == "descending"
    assert cells(table, "layer") == layers[::-1]
    field = table.find_element("css selector", "input")
    field.send_keys("layer>=10 up_proj")
    assert cells(table, "layer") == ["11", "10"]
    assert table.find_element("css selector", "[role=status]").text == "2 of 12 rows"
    field.clear()
    field.send_keys("no such matrix")
    assert cells(table, "layer") == []


def test_a_checkpoint_is_chosen_in_a_browser(results: ResultsDir, tmp_path: Path, browser: Any) -> None:
    page = build_report(results.path, tmp_path / "page.html")
    browser.get(page.as_uri())
    table = browser.find_element("css selector", "#explorer-weights")
    stored = results.table("spectral")
    for option in table.find_elements("css selector", "option"):
        option.click()
        run, label = option.text.split()
        rows = stored[(stored["run"] == run) & (stored["label"] == label)]
        shown = [float(text) for text in cells(table, "nss")[: len(rows)]]
        assert shown == pytest.approx(rows["nss"].tolist(), rel=1e-3)
        assert cells(table, "nss_error") == ["1e-9"] * 12


def test_the_page_fits_a_narrow_screen(results: ResultsDir, tmp_path: Path, browser: Any) -> None:
    browser.set_window_size(500, 900)
    browser.get(build_report(results.path, tmp_path / "page.html").as_uri())
    wide = browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0


def test_the_unreadable_figure_is_named(tmp_path: Path) -> None:
    folder = ResultsDir.create(tmp_path / "out", command="svd", config={})
    table = pa.Table.from_pylist(spectral_rows(), schema=SPECTRAL)
    summary = summarise(table.to_pandas()).to_pandas()
    folder.write_table("spectral_summary", summary[summary["measure"] == "rel_frobenius"])
    page = build_report(folder.path, tmp_path / "page.html").read_text()
    assert "parameter_drift was not drawn" in page
