"""The map: colour is the group, the marker is the data set, settings are in the caption."""

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from driftlab.errors import ResultsError
from driftlab.results import ResultsDir
from driftlab_analyses import domain_map
from driftlab_analyses.style import styled

POINTS = pd.DataFrame(
    [
        *(("tsne", "aime", "Math", i, float(i), 1.0) for i in range(4)),
        *(("tsne", "m500", "Math", i, float(i), 2.0) for i in range(3)),
        *(("tsne", "code", "code", i, float(i), 3.0) for i in range(2)),
        ("mds", "aime", "Math", -1, 0.0, 0.0),
        ("mds", "m500", "Math", -1, 0.1, 0.0),
        ("mds", "code", "code", -1, 0.4, 0.2),
    ],
    columns=["method", "domain", "group", "row", "x", "y"],
)
MAPS = {"tsne": {"perplexity": 2.5, "cap": 300, "seed": 7}, "mds": {"stress": 0.125}}


def stored(tmp_path, points, maps=MAPS):
    results = ResultsDir.create(tmp_path / "out", command="mmd", config={})
    results.write_table("projection", points)
    results.write_json("mmd", {"maps": maps})
    return results


def test_the_table_carries_the_settings(tmp_path):
    table = domain_map.table(stored(tmp_path, POINTS))
    assert table.drop(columns=["perplexity", "cap", "seed", "stress"]).equals(POINTS)
    assert table.iloc[0][["perplexity", "cap", "seed", "stress"]].tolist() == [2.5, 300, 7, 0.125]


def test_colour_is_the_group_and_marker_the_data_set(tmp_path):
    with styled():
        figure = domain_map.figure(domain_map.table(stored(tmp_path, POINTS)))
    texts, domains = figure.axes
    assert [len(c.get_offsets()) for c in texts.collections] == [4, 3, 2]
    colours = [to_hex(c.get_facecolor()[0]) for c in domains.collections]
    assert colours[0] == colours[1] != colours[2]
    shapes = [c.get_paths()[0].vertices.tolist() for c in domains.collections]
    assert shapes[0] != shapes[1] != shapes[2] != shapes[0]
    assert [a.get_text() for a in domains.texts] == ["aime", "m500", "code"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["Math:", "aime", "m500", "code"]
    for part in ("9 texts", "at most 300 a domain", "perplexity 2.5", "seed 7", "stress-1 0.12"):
        assert part in figure.get_supxlabel()


def test_long_names_stay_in_the_frame(tmp_path):
    long = POINTS.assign(domain=POINTS["domain"].map(lambda name: f"{name}_with_a_long_name"))
    with styled():
        figure = domain_map.figure(domain_map.table(stored(tmp_path, long)))
        figure.draw_without_rendering()
        frame = figure.axes[1].get_window_extent()
        spans = [text.get_window_extent() for text in figure.axes[1].texts]
    assert all(frame.x0 < span.x0 and span.x1 < frame.x1 for span in spans)


def test_without_a_text_map_the_domains_are_drawn_alone(tmp_path):
    maps = {"tsne": {"cap": 300, "seed": 0, "reason": "no t-SNE map: fewer than 4 texts"}, "mds": {"stress": 0.0}}
    with styled():
        figure = domain_map.figure(domain_map.table(stored(tmp_path, POINTS[POINTS["method"] == "mds"], maps)))
    assert len(figure.axes) == 1
    assert "t-SNE" not in figure.get_supxlabel()


def test_an_empty_projection_is_refused(tmp_path):
    with pytest.raises(ResultsError, match="the table projection is empty"):
        domain_map.table(stored(tmp_path, POINTS[:0]))
