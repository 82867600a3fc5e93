"""`torchrl-gpu compare` and `report` on runs that the program has trained."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers.browser import find_browser, open_page
from tests.helpers.program import Call, call, environments_built_once
from torchrl_gpu.checkpoints.files import new_file, partial_file
from trainers.comparing.command import write_page
from trainers.comparing.drawing import Curve, draw_curves
from trainers.comparing.groups import (
    Group,
    differences,
    grouped,
    improvements,
    over_environments,
)
from trainers.comparing.results import Results
from trainers.comparing.runs import Run, read_run, read_runs

CARTPOLE = (
    *("agent=ppo", "env=gym", "env.name=CartPole-v1", "device=cpu", "trainer.show_progress=false"),
    *("trainer.total_frames=768", "trainer.log_interval=256", "trainer.evaluation_interval=256"),
    *("trainer.evaluation_episodes=4", "evaluation.episodes=4", "agent.epochs=1", "runs=runs"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three runs: two seeds, and another learning rate."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, environments_built_once():
        for settings in (["seed=0"], ["seed=1"], ["seed=0", "agent.learning_rate=0.1"]):
            assert call(patch, folder, *CARTPOLE, *settings) == 0
    return folder / "runs"


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "runs")
    return Path("runs")


def folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.rglob("config.yaml"))


def the_groups(*paths: Path) -> list[Group]:
    (groups,) = grouped(read_runs(paths)).values()
    return groups


def edit(path: Path, *replacements: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def edit_summary(folder: Path, **changes: Any) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_runs_with_equal_settings_but_the_seed_form_a_group(runs: Path) -> None:
    found = the_groups(runs)
    assert [group.name[:2] for group in found] == ["1 ", "2 "]
    assert sorted((group.name[2:], len(group.runs)) for group in found) == [
        ("ppo, learning_rate=0.001", 2),
        ("ppo, learning_rate=0.1", 1),
    ]
    assert differences(found) == ["agent.learning_rate"]
    assert found[0].interquartile_mean >= found[1].interquartile_mean
    (pair,) = improvements(found)
    assert 0.5 <= pair.value <= 1
    assert np.isnan([pair.low, pair.high]).all()  # one of the groups has a single run
    assert re.search(r"better than .+\d  +-$", write_page([runs], "compare"), re.MULTILINE)


NAMES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "one setting each": (
        [{"agent.a": 1}, {"agent.a": 0, "agent.b": 1}, {"agent.a": 0, "trainer.c": 1}, {}],
        ["a=1", "b=1", "c=1", "a=0, b=0, c=0"],
    ),
    "many settings": (
        [{f"agent.s{number}": 1} for number in range(8)] + [{}],
        [*(f"s{number}=1" for number in range(8)), "s0=0, s1=0, s2=0, 5 more"],
    ),
    "all combinations of four": (
        [{f"agent.s{n}": number >> n & 1 for n in range(4)} for number in range(16)],
        [", ".join(f"s{n}={number >> n & 1}" for n in range(4)) for number in range(16)],
    ),
    "settings that some lack": (
        [{"env.options": "null"}, {"env.options.g": 9}, {"env.options.g": 9, "env.options.h": 1}],
        ["options=null", "g=9, without h", "h=1"],
    ),
    "long values": (
        [{"agent.path": "datasets/of/the/arm/1"}, {"agent.path": "datasets/of/the/arm/2"}],
        ["path=datasets/of/the/arm/1", "path=datasets/of/the/arm/2"],
    ),
    "a run that was resumed": (
        [
            {"agent.learning_rate_frames": n, "trainer.total_frames": n, "evaluation.episodes": n}
            for n in (36_000, 144_000)
        ],
        ["total_frames=36000", "total_frames=144000"],
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_tell_groups_of_one_agent_apart(case: str) -> None:
    settings, names = NAMES[case]
    known = dict.fromkeys((n for each in settings for n in each if "options" not in n), 0)
    runs = []
    for number, each in enumerate(settings):
        run = made("reach", "sac", 0, 1 - number / 100)
        text = {name: str(value) for name, value in (known | each).items()}
        runs.append(replace(run, settings={**run.settings, **text}))
    (groups,) = grouped(runs).values()
    assert [group.name for group in groups] == [f"{n} sac, {x}" for n, x in enumerate(names, 1)]


def test_the_closing_evaluation_does_not_tell_groups_apart() -> None:
    run = made("reach", "sac", 0, 1.0)
    runs = [replace(run, settings={"evaluation.episodes": n}) for n in ("10", "500")]
    assert [group.name for group in grouped(runs)["reach"]] == ["sac"]


def test_settings_that_only_some_runs_have_are_in_the_table(runs: Path) -> None:
    for folder, options in zip(folders(runs), ("gravity: 9", "gravity: 8", "wind: 1"), strict=True):
        edit(folder / "config.yaml", ("options: null", f"options: {{{options}}}"))
    text = write_page([runs], "compare")
    assert re.search(r"^env.options.gravity +\S+ +\S+ +\S+$", text, re.MULTILINE)
    assert "ppo, gravity=8" in text


def test_a_setting_that_follows_another_one_is_shown_as_its_number(runs: Path) -> None:
    folder = folders(runs)[0]
    assert "learning_rate_frames: ${trainer.total_frames}" in (folder / "config.yaml").read_text()
    assert read_run(folder).settings["agent.learning_rate_frames"] == "768"


def test_a_run_is_read_as_it_was_trained(runs: Path) -> None:
    folder = folders(runs)[0]
    run = read_run(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert (run.env, run.agent, run.measure) == ("gym/CartPole-v1", "ppo", "return")
    assert run.score == summary["mean_return"]
    assert run.curve["frames"].tolist() == [256, 512, 768]
    assert (np.diff(run.curve["seconds"]) > 0).all()
    assert run.reaches(float(run.curve["score"].min()), "frames") == run.curve["frames"].min()
    assert run.reaches(1e9, "seconds") == np.inf
    assert run.settings["versions.torchrl-gpu"]
    assert (run.metrics["system/memory_bytes"][:1] > 2**20).all()


def test_a_learning_curve_ends_with_the_shortest_of_its_runs(runs: Path) -> None:
    first, *_ = folders(runs)
    lines = (first / "metrics.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("768,")]
    (first / "metrics.csv").write_text("".join(kept) + "768,1.0,trunc")  # killed in a row
    (first / "summary.json").unlink()
    (group,) = (each for each in the_groups(runs) if len(each.runs) == 2)
    assert list(group.curve("frames").x) == [256, 512]
    assert group.ended == 1
    text = write_page([runs], "compare")
    assert "2, 1 not ended" in text


def test_runs_of_scripts_are_told_apart_by_their_agents(runs: Path) -> None:
    for folder, agent in zip(folders(runs)[:2], ("SAC", "PPO"), strict=True):
        (folder / "config.yaml").write_text("{}\n")
        edit_summary(folder, agent=agent, env="Mine")
    found = grouped(read_runs(folders(runs)[:2]))
    assert {group.runs[0].agent for group in found["Mine"]} == {"SAC", "PPO"}


def test_a_run_that_was_stopped_has_not_ended(runs: Path) -> None:
    folder = folders(runs)[0]
    summary = json.loads((folder / "summary.json").read_text())
    del summary["ended"]  # as a training writes it before the closing evaluation
    (folder / "summary.json").write_text(json.dumps({**summary, "mean_return": 1e6}))
    run = read_run(folder)
    assert run.score == run.curve["score"].max()
    assert "1, 1 not ended" in write_page([folder], "report")
    assert "the run has not ended" in Path("report.html").read_text()


def test_curve_and_interval_of_known_scores() -> None:
    def run(seed: int, scores: list[float]) -> Run:
        frames = np.arange(1, len(scores) + 1) * 100.0
        metrics = {"frames": frames, "seconds": frames / 10, "evaluation/success": np.array(scores)}
        return Run(Path(str(seed)), {"seed": str(seed)}, "reach", "sac", metrics, {})

    group = Group("sac", 0, [run(0, [0.0, 0.5, 1.0]), run(1, [0.2, 0.5, 0.6]), run(2, [0.1] * 3)])
    curve = group.curve("seconds")
    assert list(curve.x) == [10, 20, 30]
    np.testing.assert_allclose(curve.y, [0.1, 1.1 / 3, 1.7 / 3])
    np.testing.assert_allclose(curve.low[:1], [0.0], atol=1e-12)
    np.testing.assert_allclose(curve.high[:1], [0.2])
    np.testing.assert_allclose(group.scores, [1.0, 0.6, 0.1])  # the best one so far
    assert group.reaches(0.5, "frames") == (200, 2)
    assert group.reaches(0.9, "frames") == (np.inf, 1)
    results = Results("reach", [group], success=0.5)
    header, ((*cells,),) = results.table()
    row = dict(zip(header, cells, strict=True))
    assert row["IQM"] == "56.7 %"
    assert row["frames to 50 %"] == "200 (2 of 3)"
    assert row["time"] == "20 s (2 of 3)"
    assert "device" not in row


def made(env: str, agent: str, seed: int, score: float, measure: str = "success") -> Run:
    """Return a run with one evaluation."""
    metrics = {"frames": [100.0], "seconds": [10.0], f"evaluation/{measure}": [score]}
    columns = {name: np.array(column) for name, column in metrics.items()}
    settings = {"seed": str(seed), "agent._target_": agent}
    return Run(Path(f"{env}/{agent}/{seed}"), settings, env, agent, columns, {})


def test_agents_are_compared_over_environments_with_success_rates() -> None:
    scores = {"sac": ([0.5, 0.6], [0.9, 1.0]), "ppo": ([0.7, 0.55], [0.2, 0.1])}
    runs = [
        made(env, agent, seed, score)
        for agent, rows in scores.items()
        for env, row in zip(("reach", "lift"), rows, strict=True)
        for seed, score in enumerate(row)
    ]
    sac, ppo = over_environments(grouped(runs))
    assert (sac.name, len(sac.runs)) == ("1 sac", 4)
    assert sac.interquartile_mean == pytest.approx(0.75)  # of 0.5 0.6 0.9 1.0
    low, high = sac.interval
    assert 0.7 <= low < high <= 0.8  # 0.5 is never drawn in place of 0.9
    (pair,) = improvements([sac, ppo])
    assert pair.value == pytest.approx((0.25 + 1) / 2)
    assert not over_environments(grouped(runs[:6]))  # ppo lacks an environment
    assert not over_environments(grouped([*runs, made("pole", "sac", 0, 500, "return")]))


def test_success_rates_and_returns_of_one_environment_are_apart() -> None:
    runs = [made("reach", "sac", 0, 0.9), made("reach", "sac", 1, 250.0, "return")]
    found = grouped(runs)
    assert [*found] == ["reach, return", "reach, success"]
    assert found["reach, success"][0].scores.tolist() == [0.9]


ODD = {
    "a row of a callback": "100,1.0,,2.0,\n200,2.0,,4.0,\n300,,,,0.5\n",
    "the first row at once": "0,0.0,,4.0,\n",
    "no number of frames": ",1.0,,9.0,\n200,2.0,,4.0,\n",
    "no success rate": "100,1.0,nan,4.0,\n200,2.0,nan,-inf,\n",
    "huge": "100,1.0,,4.0,1e308\n200,2.0,,3.0,-1e308\n300,3.0,,3.0,inf\n",
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.filterwarnings("error")
def test_metrics_with_odd_numbers_are_shown(case: str, runs: Path) -> None:
    folder = folders(runs)[0]
    (folder / "summary.json").unlink()
    header = "frames,seconds,evaluation/success,evaluation/return,loss/odd\n"
    (folder / "metrics.csv").write_text(header + ODD[case])
    run = read_run(folder)
    assert (run.measure, run.score) == ("return", 4.0)
    for name in ("compare", "report"):
        assert "1 not ended" in write_page([runs if name == "compare" else folder], name)
        text = Path(f"{name}.html").read_text()
        assert not re.search(r"[ ,>]nan[ ,<]", text.lower())


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean_return", math.nan), ("mean_return", None), ("mean_return", "high"), ("episodes", None)],
)
def test_a_run_without_a_finite_score_is_left_out(
    name: str, value: Any, runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folders(runs)[0]
    edit_summary(folder, **{name: value})
    assert len(read_runs([runs])) == 2
    assert f"left out: {folder / 'summary.json'} has no finite score" in caplog.text


def test_long_and_strange_values_keep_tables_narrow_and_the_page_safe(runs: Path) -> None:
    value = "<script>alert(1)</script>\\n" + 50 * "long "
    edit(folders(runs)[0] / "config.yaml", ("activation: relu", f'activation: "{value}"'))
    strange = Path("a & b 'ü' <b>")
    runs.rename(strange)
    text = write_page([strange], "compare")
    assert "activation=<script>alert(1)</s…" in text
    assert max(map(len, text.splitlines())) < 120
    page = Page(Path("compare.html").read_text())
    assert not {"script", "b"} & {*page.found}


class Page(HTMLParser):
    """Collects elements, and fails where they are not nested."""

    VOID = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.sources: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.sources += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_comparison_is_a_table_and_one_offline_file(runs: Path, program: Call) -> None:
    film = folders(runs)[0] / "videos" / "demo.gif"
    film.parent.mkdir()
    Image.new("RGB", (8, 8)).save(film)
    table = program("compare", str(runs), "mean_return=5").report()
    assert "frames to 5" in table
    assert re.search(r"^agent.learning_rate +0\.\d+ +0\.\d+$", table, re.MULTILINE)
    assert table.endswith("page: compare.html\n")
    text = Path("compare.html").read_text()
    page = Page(text)
    assert page.found.count("svg") > 10
    assert not {"script", "link", "iframe"} & {*page.found}
    assert "http" not in text
    assert all(source.startswith("data:image/gif;base64,") for source in page.sources)
    assert len(page.sources) == 1
    assert "NaN" not in text
    assert " nan" not in text
    assert program("compare", str(runs)).code == 0  # overwrites nothing
    assert Path("compare_2.html").exists()


def test_a_large_film_is_linked(runs: Path) -> None:
    film = folders(runs)[0] / "videos" / "my film.mp4"
    film.parent.mkdir()
    film.write_bytes(bytes(5 * 2**20))
    (Path.cwd() / "pages").mkdir()
    write_page([runs], "compare", Path("pages/page.html"))
    (source,) = Page(Path("pages/page.html").read_text()).sources
    linked = Path("pages") / source.replace("%20", " ")
    assert linked.resolve() == film.resolve()


def test_a_film_that_is_being_made_is_left_out(runs: Path) -> None:
    folder = folders(runs)[0]
    with (
        new_file(folder / "videos" / "demo_2.mp4") as path,
        partial_file(path) as partial,
    ):
        partial.write_bytes(bytes(8))
        assert read_run(folder).film() is None
        film = folder / "videos" / "demo_1.mp4"
        film.write_bytes(bytes(8))
        assert read_run(folder).film() == film
    assert read_run(folder).film() == path


def test_dots_are_not_thinned_as_lines_are() -> None:
    x = np.arange(1000.0)
    picture = draw_curves([Curve("trials", x, x, dots=True), Curve("best", x, x)], "y", "x")
    assert picture.count("<circle") == 1000
    assert picture.count("L") == 199


@pytest.mark.parametrize(("y", "dots"), [([1, 2], 0), ([1, math.nan], 1)])
def test_a_line_of_a_single_point_is_a_dot_that_shows(y: list[float], dots: int) -> None:
    assert draw_curves([Curve("run", [0, 1], y)], "y", "x").count("stroke-width:7") == dots


@pytest.mark.skipif(sys.platform != "linux", reason="paths are Unicode")
def test_a_path_that_is_not_utf_8_is_shown_and_linked(runs: Path) -> None:
    film = folders(runs)[0] / "videos" / "demo.mp4"
    film.parent.mkdir()
    film.write_bytes(bytes(5 * 2**20))
    odd = Path(os.fsdecode(b"odd\xff"))
    runs.rename(odd)
    write_page([odd], "compare")
    text = Path("compare.html").read_text()
    assert Page(text).sources[0].startswith("odd%FF/")
    assert "<code>odd?/" in text


@pytest.mark.skipif(find_browser() is None, reason="Chromium is not installed")
@pytest.mark.parametrize("name", ["compare", "report"])
def test_pages_open_in_a_browser(name: str, runs: Path, tmp_path: Path) -> None:
    write_page([runs if name == "compare" else folders(runs)[0]], name)
    script = """
        const wide = document.documentElement.scrollWidth <= window.innerWidth;
        const lines = [...document.querySelectorAll("path.line")];
        return {wide, drawn: lines.filter((line) => line.getTotalLength() > 0).length};
    """
    shown = open_page(Path(f"{name}.html").read_text(), script, tmp_path)
    assert shown["wide"]
    assert shown["drawn"] > 10


def test_neither_command_imports_torch(runs: Path) -> None:
    for arguments in (["compare", str(runs)], ["report", str(folders(runs)[0])]):
        script = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r}); "
            "from trainers.run import main; "
            f"sys.argv[1:] = {arguments}; assert main() == 0; assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", script], check=True)


def test_environments_have_tables_of_their_own(runs: Path) -> None:
    other = folders(runs)[0]
    edit(other / "config.yaml", ("name: CartPole-v1", "name: Acrobot-v1"))
    text = write_page([runs], "compare")
    assert re.findall(r"^gym/\S+", text, re.MULTILINE) == ["gym/Acrobot-v1", "gym/CartPole-v1"]
    assert "<h2>gym/Acrobot-v1</h2>" in Path("compare.html").read_text()


def test_a_run_that_is_named_twice_counts_once(runs: Path) -> None:
    assert len(read_runs([runs, folders(runs)[0], runs.absolute()])) == 3


def test_a_run_of_a_folder_without_evaluations_is_left_out(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folders(runs)[0] / "metrics.csv").write_text("frames,seconds,loss/policy\n256,1.0,0.1\n")
    assert len(read_runs([runs])) == 2
    assert f"left out: {folders(runs)[0]}: the run has no evaluation yet" in caplog.text


REFUSED = {
    "nothing": ([], "a run folder is missing: torchrl-gpu compare runs/..."),
    "absent": (["absent"], "absent: does not exist; name a run folder, or a folder of runs"),
    "file": (["{run}/config.yaml"], "is not a folder; name a run folder, or a folder of runs"),
    "empty": (["empty"], "empty: no run is in this folder; a run folder has a config.yaml and"),
    "exists": (["runs", "output=kept.html"], "output=kept.html: this file exists; delete it"),
    "suffix": (["runs", "output=page.pdf"], "output=page.pdf: name a .html file"),
    "range": (["runs", "success=2"], "success=2: "),
    "nan": (["runs", "success=nan"], "success=nan: input should be a finite number"),
    "not finite": (["runs", "mean_return=nan"], "mean_return=nan: input should be a finite number"),
    "typo": (["runs", "outptu=a.html"], "outptu: unknown argument; did you mean output"),
    "twice": (["runs", "output=a.html", "output=b.html"], "output=b.html: leave one of them out"),
    "no metrics": (["bare"], "bare: the run has no metrics.csv yet, or no csv among trainer."),
    "no evaluation": (["young"], "young: the run has no evaluation yet"),
    "not metrics": (["other"], "metrics.csv is not the metrics file of a run"),
    "not settings": (["broken"], "config.yaml cannot be read: it does not hold the settings"),
    "damaged settings": (["odd"], "config.yaml cannot be read: it does not hold the settings"),
    "of another program": (
        ["foreign"],
        "config.yaml cannot be read: it does not hold the settings",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line(case: str, runs: Path, program: Call) -> None:
    Path("kept.html").write_text("mine")
    run = folders(runs)[0]
    Path("empty").mkdir()
    for name, metrics in {"bare": None, "young": "frames,seconds\n", "other": "a,b\n1\n"}.items():
        Path(name).mkdir()
        shutil.copy(run / "config.yaml", name)
        if metrics is not None:
            Path(name, "metrics.csv").write_text(metrics)
    Path("broken").mkdir()
    Path("broken/config.yaml").write_text("- a\n")
    Path("odd").mkdir()
    Path("odd/config.yaml").write_text(":::")
    Path("foreign").mkdir()
    Path("foreign/config.yaml").write_text("env: fanuc\nagent: [sac]\n")
    before = sorted(Path.cwd().glob("*.html"))
    arguments, message = REFUSED[case]
    assert message in program("compare", *(a.format(run=run) for a in arguments)).refusal()
    assert sorted(Path.cwd().glob("*.html")) == before
    assert Path("kept.html").read_text() == "mine"


def test_a_report_is_on_one_run(runs: Path, program: Call) -> None:
    assert "runs: a report is on one run, and there are 3" in program("report", str(runs)).refusal()
    assert program("report", str(folders(runs)[0])).code == 0
    text = Path("report.html").read_text()
    assert "agent.learning_rate" in text  # all settings
    assert "system/memory" in text
    assert "4 episodes" in text
