"""The rate of a run over time: its points, the line of bars, and the picture."""

import re
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from daybook.clients.cli.pictures import drawn_reports, picture_option
from daybook.clients.pipelines.history import POINTS_MAX, History, Point
from daybook.clients.pipelines.picture import Picture, draw, title_of
from daybook.clients.pipelines.spec import Cluster, CopySource, copy_pipeline

SVG = "{http://www.w3.org/2000/svg}"
TITLE = "copy-a-to-b\na of $2 \u2192 b & <c>"


def history(*points: tuple[float, int, int | None]) -> History:
    made = History()
    for point in points:
        made.add(*point)
    return made


def test_rates_are_those_between_points() -> None:
    found = history((10, 1000, 500), (12, 1500, 0), (22, 1500, 0))
    assert found.points[0] == Point(0.0, 0, None)
    assert found.rates == [100.0, 250.0, 0.0]


def test_a_point_at_the_same_time_replaces_the_last_one() -> None:
    found = history((10, 1000, 500), (10, 1200, 300))
    assert found.points[1:] == [Point(10, 1200, 300)]


def test_a_long_run_keeps_its_first_and_last_point_and_some_between() -> None:
    found = history(*((at, 10 * at, 5) for at in range(1, 10 * POINTS_MAX)))
    assert POINTS_MAX / 2 <= len(found.points) <= POINTS_MAX
    assert (found.points[0].at_s, found.points[-1].at_s) == (0, 10 * POINTS_MAX - 1)
    assert set(found.rates) == {10.0}


@pytest.mark.parametrize(
    ("points", "bars"),
    [
        ([(1, 100, 0), (2, 100, 0), (3, 150, 0)], "\u2588\u2581\u2585"),
        ([(2, 100, 0)], "\u2588"),
        ([(1, 0, 0), (2, 0, 0)], ""),
        ([], ""),
    ],
)
def test_the_line_has_a_bar_for_each_part_of_the_time(
    points: list[tuple[float, int, int | None]], bars: str
) -> None:
    assert history(*points).line() == bars


def test_the_line_of_a_long_run_is_short() -> None:
    assert len(history(*((at, at, 0) for at in range(1, 1000))).line(30)) == 30


def curve(root: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    """Return the corners of a curve."""
    (group,) = [each for each in root.iter(f"{SVG}g") if each.get("id") == name]
    path = group.find(f"{SVG}path")
    assert path is not None
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d") or "")]


def test_the_svg_has_both_curves_with_all_points(tmp_path: Path) -> None:
    count = 700  # more than are marked, and more than matplotlib would keep by itself
    file = tmp_path / "run.svg"
    draw(file, history(*((at, at * at, count - at) for at in range(1, count + 1))), TITLE)
    root = ElementTree.parse(file).getroot()
    assert root.tag == f"{SVG}svg"
    steps, behind = curve(root, "rate"), curve(root, "behind")
    assert len(steps) == 2 * (count + 1) - 1  # a step has a corner more
    assert len(behind) == count  # not known at the start
    assert behind == sorted(behind)  # to the right, and down to nothing (y points down)
    assert steps[-1][1] < steps[0][1]
    texts = {"".join(each.itertext()).strip() for each in root.iter(f"{SVG}text")}
    assert texts >= {
        *("messages per second", "messages behind", "time since the start (minutes)"),
        *TITLE.splitlines(),
    }
    assert [each.name for each in tmp_path.iterdir()] == ["run.svg"], "no part is left"


def test_a_picture_is_a_png_by_its_name_and_a_run_without_messages_has_one(tmp_path: Path) -> None:
    draw(tmp_path / "run.PNG", History(), TITLE)
    assert (tmp_path / "run.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    picture = Picture(tmp_path / "gone" / "run.svg", TITLE, lines.append)
    picture.write(History())
    picture.write(History())
    (line,) = lines
    assert line.startswith("the picture ")
    assert line.endswith("cannot be written: No such file or directory")


def test_the_title_names_the_pipeline_and_both_topics() -> None:
    cluster = Cluster("pulsar://b:6650", "http://b:8080")
    made = copy_pipeline(CopySource("kafka", "k:9092", "clicks"), "copies", cluster, "c")
    assert title_of(made) == "copy-clicks-to-copies\nclicks of Kafka \u2192 copies"


@click.command()
@picture_option
def command(picture: Path | None) -> None:
    click.echo(f"{picture}")


def test_what_cannot_be_drawn_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: str) -> str:
        shown = CliRunner().invoke(command, words)
        assert (shown.exit_code == 0) == (not words or "run.svg" in shown.stdout)
        return shown.output

    file = str(tmp_path / "run.svg")
    assert said() == "None\n"
    assert said("--picture", file) == f"{file}\n"
    assert "is neither FILE.svg nor FILE.png" in said("--picture", "run.gif")
    assert "there is no directory" in said("--picture", str(tmp_path / "gone" / "x.svg"))
    monkeypatch.setattr("daybook.clients.cli.pictures.find_spec", lambda _: None)
    shown = CliRunner().invoke(command, ["--picture", file])
    assert shown.exit_code == 1
    assert "pip install 'daybook-mq[pictures]'" in shown.output


def test_the_steps_of_an_archive_that_follows_its_topic_are_one_picture(tmp_path: Path) -> None:
    file, told = tmp_path / "run.svg", list[tuple[int, int, int]]()
    with drawn_reports(file, TITLE) as drawn:
        for _ in range(2):
            report = drawn(lambda *given: told.append(given))
            for step in range(4):
                report(10 * step, step, 3)
    assert told == 2 * [(0, 0, 3), (10, 1, 3), (20, 2, 3), (30, 3, 3)]
    root = ElementTree.parse(file).getroot()
    assert len(curve(root, "behind")) == 8
    assert len(curve(root, "rate")) == 2 * 9 - 1


def test_without_a_picture_a_report_stays_as_it_is() -> None:
    def report(rows: int, done: int, total: int) -> None:
        raise AssertionError((rows, done, total))

    with drawn_reports(None, TITLE) as drawn:
        assert drawn(report) is report
