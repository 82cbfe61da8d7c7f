"""The documents hold together: links and anchors resolve, commands parse, tables of measures are the program's."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from driftlab.spectral.measures import MEASURES
from driftlab_cli.main import app

USAGE_ERROR = typer.BadParameter.__mro__[1]  # typer brings a click of its own
ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])
PAGES += [ROOT / "benchmarks" / "README.md"]
_LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(page):
    return str(page.relative_to(ROOT))


def prose(page):
    """Return a page without its blocks of code, where nothing is a heading or a link."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page):
    """Return the anchors that GitHub gives the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", "")).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
        found.add(f"{slug}-{number}" if number and slug in found else slug)
    return found


def links(page):
    return [target for target in _LINK.findall(prose(page)) if not re.match(r"[a-z]+:", target)]


def broken(page):
    """Return the links of a page that lead nowhere."""
    lost = []
    for target in links(page):
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            lost.append(target)
    return lost


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_anchors_resolve(page):
    assert broken(page) == []


def test_there_are_links_and_a_broken_one_is_found(tmp_path):
    assert sum(len(links(page)) for page in PAGES) > 30
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`, three?\n[a](#one-two-three) [b](#four) [c](gone.md) [d](https://x.org)\n```\n[e](f)\n```\n"
    )
    assert broken(page) == ["#four", "gone.md"]


def test_every_page_is_reached_from_another():
    reached = {(page.parent / target.partition("#")[0]).resolve() for page in PAGES for target in links(page)}
    assert [name(page) for page in ROOT.glob("docs/*.md") if page.resolve() not in reached] == []


# -- command lines ---------------------------------------------------------------------------------------------------


def command_lines(page):
    """Return the driftlab commands in a page's blocks: continued lines joined, remarks and alternatives cut."""
    found = []
    for language, block in _FENCE.findall(page.read_text(encoding="utf-8")):
        if language in ("python", "toml", "json"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"\s*(\$ )?driftlab ", line):
                words = shlex.split(line.strip().removeprefix("$ "), comments=True)
                found.append(words[1:])
    return found


def parse(words):
    """Parse one command line as the program would, without running it."""
    group = typer.main.get_command(app)
    with group.context_class(group, info_name="driftlab") as context:
        command = group.get_command(context, words[0])
        assert command is not None, f"no command {words[0]!r}"
        help_only = [word for word in words[1:] if word not in ("--list-measures", "--list-settings", "…", "...")]
        if len(help_only) < len(words) - 1 and not {"…", "..."} & set(words):
            return
        command.make_context(words[0], help_only, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_documented_commands_parse(page):
    for words in command_lines(page):
        try:
            parse(words)
        except USAGE_ERROR as error:
            pytest.fail(f"driftlab {shlex.join(words)}: {error.format_message()}")


def test_commands_are_found_and_a_wrong_one_is_refused():
    assert sum(len(command_lines(page)) for page in PAGES) > 50
    with pytest.raises(USAGE_ERROR, match="--no-such"):
        parse(["svd", "runs", "-o", "out", "--no-such"])
    with pytest.raises(USAGE_ERROR, match="out"):
        parse(["svd", "runs"])
    with pytest.raises(AssertionError, match="no command"):
        parse(["measure"])


# -- measures --------------------------------------------------------------------------------------------------------


def test_the_table_of_measures_is_the_programs():
    page = (ROOT / "docs" / "measures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \|(.+)\|$", page, re.MULTILINE)
    expected = [
        (m.name, [m.unit, f"{m.low} … {m.high}", m.no_drift, ", ".join(m.nulls) or "-", m.source])
        for m in MEASURES.values()
    ]
    assert [(found, [cell.strip() for cell in cells.split("|")]) for found, cells in rows] == expected


def test_every_measure_has_a_section_that_says_what_it_says():
    page = (ROOT / "docs" / "measures.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(MEASURES)
    assert [found for found, text in sections.items() if "**Says**" not in text or len(text) < 60] == []
