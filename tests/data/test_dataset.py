# SPDX-License-Identifier: Apache-2.0
"""Encoded data sets: what is cached, who builds, and how prompts are held out."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from alignax.data.dataset import build_dataset, split_by_prompt
from alignax.errors import DataError
from tests.data.toys import chatml, encoder

BUILD = """
import sys
from pathlib import Path
from tests.data.toys import chatml, encoder
from alignax.data.dataset import build_dataset
built, report = build_dataset(sys.argv[1], format="auto", split="train", kind="pair",
    encoder=encoder(chatml()), cache_dir=Path(sys.argv[2]))
print(report.cache["hit"], sum(built[i].token_count for i in range(len(built))))
"""


def write(path, count, **more):
    rows = [
        {"prompt": f"q{i // 2} ", "chosen": f"yes {i}", "rejected": f"no {i}", **more}
        for i in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def build(file, cache, **settings):
    defaults = {"format": "auto", "split": "train", "kind": "pair", "encoder": encoder(chatml())}
    return build_dataset(file, cache_dir=cache, **(defaults | settings))


def test_access_select_and_columns(tmp_path):
    dataset, report = build(write(tmp_path / "a.jsonl", 6), tmp_path / "c")
    assert (len(dataset), dataset.branches, report.kept) == (6, 2, 6)
    example = dataset[4]
    assert dataset.lengths[4].tolist() == [len(example.prompt), *map(len, example.answers)]
    assert example.row_id == dataset.row_ids[4]
    assert dataset.places[4].endswith("a.jsonl:5")
    picked = dataset.select([4, 0]).select(np.array([0]))
    assert picked[0].row_id == example.row_id
    assert picked[0].answers[1].tolist() == example.answers[1].tolist()
    assert (picked.places, picked.source_index.tolist()) == (dataset.places[4:5], [4])
    assert (picked.digest, picked.content_hash) == (dataset.digest, dataset.content_hash)


def test_max_rows_and_kind_are_parts_of_the_key(tmp_path):
    file = write(tmp_path / "a.jsonl", 6)
    build(file, tmp_path / "c")
    short, report = build(file, tmp_path / "c", max_rows=4)
    assert (len(short), report.cache["changed"]) == (4, ["rows used"])
    sft, report = build(file, tmp_path / "c", kind="sft")
    assert (sft.branches, report.cache["changed"]) == (1, ["kind"])
    text = encoder(chatml()).decode(sft[0].answers[0].tolist())
    assert text == "yes 0<|end|>"


def test_a_hit_reports_what_the_build_saw(tmp_path):
    file = write(tmp_path / "a.jsonl", 6, note="unread")
    with (tmp_path / "a.jsonl").open("a") as more:
        more.write('\n{"prompt": "q", "chosen": "same", "rejected": "same"}')
    _, built = build(file, tmp_path / "c")
    _, found = build(file, tmp_path / "c")
    first, second = built.to_json(), found.to_json()
    assert (first.pop("cache")["hit"], second.pop("cache")["hit"]) == (False, True)
    assert first == second
    assert found.dropped_rows[6].place.endswith("a.jsonl:7")
    assert found.unused_columns == ["note"]
    json.dumps(second)


@pytest.mark.parametrize("leftover", ["partial", "unfinished"])
def test_a_build_that_was_killed_is_done_again(tmp_path, leftover):
    file = write(tmp_path / "a.jsonl", 3)
    build(file, tmp_path / "c")
    (folder,) = (p for p in (tmp_path / "c" / "encoded").iterdir() if p.is_dir())
    if leftover == "partial":
        folder.rename(folder.with_name(f"{folder.name}.partial"))
    else:
        (folder / "manifest.json").unlink()
        (folder / "ids.bin").write_bytes(b"")
    dataset, report = build(file, tmp_path / "c")
    assert not report.cache["hit"]
    assert len(dataset[2].prompt) == 3
    assert not list((tmp_path / "c" / "encoded").glob("*.partial"))


def test_c13_two_threads_build_once(tmp_path):
    file, seen = write(tmp_path / "a.jsonl", 40), []
    encoders = [encoder(chatml()) for _ in range(2)]
    threads = [
        threading.Thread(
            target=lambda e=e: seen.append(build(file, tmp_path / "c", encoder=e)[1].cache["hit"])
        )
        for e in encoders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [False, True]


def test_c13_two_processes_build_once(tmp_path):
    file = write(tmp_path / "a.jsonl", 600)
    command = [sys.executable, "-c", BUILD, file, str(tmp_path / "c")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate()[0].split() for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert [hit for hit, _ in said] == ["False", "True"]
    assert said[0][1] == said[1][1]


def test_progress_counts_rows(tmp_path):
    seen = []
    build(write(tmp_path / "a.jsonl", 300), tmp_path / "c",
          progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    assert seen == [(256, 300), (300, 300)]


def test_held_out_prompts_are_never_trained_on(tmp_path):
    dataset, _ = build(write(tmp_path / "a.jsonl", 200), tmp_path / "c")
    train, held = split_by_prompt(dataset, 0.1)
    assert len(held) == 20
    assert len(train) == 180
    assert not set(train.prompt_hashes) & set(held.prompt_hashes)
    again = split_by_prompt(dataset.select(range(199, -1, -1)), 0.1)[1]
    assert sorted(again.row_ids) == sorted(held.row_ids)
    assert len(split_by_prompt(dataset, 0.1, max_rows=6)[1]) == 6
    assert len(split_by_prompt(dataset, 0.0)[1]) == 0


def test_every_row_unusable(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "q", "chosen": "a", "rejected": "a"}\n')
    with pytest.raises(DataError, match="every row is unusable") as caught:
        build(str(file), tmp_path / "c", max_bad_share=1.0)
    assert "identical_pair: 1 rows" in str(caught.value)
    assert "a.jsonl:1" in str(caught.value)


def test_a_cache_folder_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(DataError, match="cannot write") as caught:
        build(write(tmp_path / "a.jsonl", 3), blocked)
    assert "--data.cache" in str(caught.value)
