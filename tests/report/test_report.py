# SPDX-License-Identifier: Apache-2.0
"""Run folders → report: what is read, and what the page holds."""

import json
from dataclasses import asdict
from html.parser import HTMLParser

import pytest

from alignax.errors import RunError
from alignax.report.build import build_report, duration
from alignax.report.render import render


class Page(HTMLParser):
    """Collects tags, attributes and text of a page, and checks that tags close in order."""

    VOID = ("meta", "br")

    def __init__(self, html: str):
        """Parse a whole page."""
        super().__init__()
        self.tags, self.links, self.words, self.open = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name.endswith("href") or name == "src"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text, white space made single."""
        return " ".join(" ".join(self.words).split())


def test_a_finished_run(dpo_run):
    report = build_report(dpo_run)
    assert report.status == "better"
    assert report.best_step == 200
    assert [e["step"] for e in report.evaluations] == list(range(0, 241, 40))
    assert len(report.curves["loss"]) == 240
    assert report.curves["loss"][0][0] == 1
    labels = [card["label"] for card in report.headline]
    assert labels[:4] == ["Held-out accuracy", "Reward margin", "Held-out loss", "KL per token"]
    assert report.headline[0]["before"] == "all tied"
    assert report.headline[2]["before"] == "0.6931"
    assert report.facts["Time"] == "13 min 32 s"
    json.dumps(asdict(report))


def test_samples_are_those_of_the_best_step(dpo_run):
    first = build_report(dpo_run).samples[0]
    assert first["before"].startswith("There are many ways")
    assert first["after"].startswith("Let the wax harden")
    assert (first["before_finish"], first["after_finish"]) == ("length", "stop")


def test_the_page_needs_nothing_from_outside(dpo_run):
    page = Page(render(build_report(dpo_run)))
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)


def test_the_page_shows_every_part(dpo_run):
    html = render(build_report(dpo_run))
    text = Page(html).text
    for heading in (
        "How training went",
        "Held-out evaluations",
        "The same prompts, before and after",
        "What the rows are like",
        "Exported",
        "Events",
        "Settings",
        "Fingerprints",
    ):
        assert heading in text
    for word in ("prompt differs", "5f0c2a9e1b7d4c33", "optimizer.learning_rate", "0.0003",
                 "5c9e1fd0a7734b2e", "policy and reference agree", "prompt hash"):  # fmt: skip
        assert word in text
    assert html.count("<svg") == 9
    assert html.count("<b>Bad:</b>") == 9
    for media in ("prefers-color-scheme: dark", "max-width: 640px", "@media print"):
        assert media in html


def test_a_traced_run_tells_where_its_time_went(dpo_run):
    traced = {
        "steps": 2, "last_step": 4, "seconds_per_step": 3.0,
        "kinds": [
            {"kind": "projections", "seconds": 4.5, "share": 0.75, "operations": 12},
            {"kind": "host", "seconds": 1.5, "share": 0.25, "operations": 0},
        ],
        "slowest": [
            {"op": "dot.7<b>", "kind": "projections", "seconds": 4.0, "origin": "step/dot"}
        ],
    }  # fmt: skip
    assert "Where the time went" not in render(build_report(dpo_run))
    (dpo_run / "profile.json").write_text(json.dumps(traced))
    page = Page(render(build_report(dpo_run)))
    assert "Where the time went 2 steps of 3.00 s." in page.text
    assert "projections 2.250 75.0 %" in page.text
    assert "dot.7<b> projections 2.000 step/dot" in page.text
    assert page.open == []


def test_text_from_the_run_is_escaped(dpo_run):
    html = render(build_report(dpo_run))
    assert '<script>alert("hi")' not in html
    assert "&lt;script&gt;alert(&quot;hi&quot;)" in html
    assert "&lt;|im_start|&gt;user" in html
    assert "&lt;b&gt;It shows a box." in html


def test_hostile_names_everywhere_stay_text(dpo_run):
    evil = "</style><script>x()</script><b onclick='y()'>\""
    recipe = (dpo_run / "recipe.yaml").read_text()
    (dpo_run / "recipe.yaml").write_text(
        recipe.replace("models/SmolLM2-135M-Instruct", json.dumps(evil))
    )
    (dpo_run / "events.jsonl").write_text(
        json.dumps({"step": 1, "kind": evil, "message": evil}) + "\n"
    )
    (dpo_run / "data_report.json").write_text(
        json.dumps(
            {"train": {evil: {evil: [evil]}, "dropped": {evil: {"count": 1, "rows": [evil]}}}}
        )
    )
    (dpo_run / "fingerprints.json").write_text(json.dumps({evil: evil, "versions": {evil: evil}}))
    page = Page(render(build_report(dpo_run)))
    assert "script" not in page.tags
    assert page.text.count("x()") >= 8


def test_charts_follow_the_colour_scheme_and_keep_their_numbers(dpo_run):
    html = render(build_report(dpo_run))
    assert "var(--first)" in html
    assert "#030303" not in html
    assert "0.015" in html, "tick labels must not be rounded with the coordinates"


def test_an_sft_run(sft_run):
    report = build_report(sft_run)
    assert report.status == "better"
    assert [card["label"] for card in report.headline] == ["Held-out loss", "Perplexity"]
    page = Page(render(report))
    assert "Loss per token" in page.text
    assert "Reward margin" not in page.text
    assert "The same prompts" not in page.text


def test_a_run_that_was_killed(dpo_run):
    (dpo_run / "summary.json").unlink()
    metrics = dpo_run / "metrics.jsonl"
    lines = metrics.read_text().splitlines()[:60]
    metrics.write_text("\n".join([*lines, '{"step": 60, "kind": "tr']))
    report = build_report(dpo_run)
    assert report.status == "unfinished"
    assert "has not finished: 59 steps" in report.verdict
    assert Page(render(report)).open == []


def test_a_run_that_has_only_begun(dpo_run):
    for path in [p for p in dpo_run.rglob("*") if p.is_file() and p.name != "recipe.yaml"]:
        path.unlink()
    report = build_report(dpo_run)
    assert "no held-out evaluation" in report.verdict
    assert Page(render(report)).open == []


def test_values_that_are_not_finite_do_not_break_the_page(dpo_run):
    with (dpo_run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 241, "kind": "train", "loss": NaN, "grad_norm": Infinity}\n')
        file.write('{"step": 241, "kind": "eval", "n": 1, "loss": 0.6, "loss_low": -Infinity, '
                   '"loss_high": Infinity, "margin": NaN, "accuracy": 1.0}\n')  # fmt: skip
    html = render(build_report(dpo_run))
    assert "-∞ to ∞" in html
    assert "not finite" in html


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{"),
        ("data_report.json", "[1]"),
        ("metrics.jsonl", '{"step": \n{"step": 1}\n'),
        ("recipe.yaml", "- a\n"),
        ("recipe.yaml", "a: [\n"),
    ],
)
def test_damaged_files_are_named(dpo_run, name, content):
    (dpo_run / name).write_text(content)
    with pytest.raises(RunError, match=name):
        build_report(dpo_run)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="recipe.yaml"):
        build_report(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(8.4, "8 s"), (61, "1 min 1 s"), (7384, "2 h 3 min")]
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected
