# SPDX-License-Identifier: Apache-2.0
"""Plant defects in real rows and measure what the audit finds: recall and precision by reason.

    python benchmarks/data_defects.py FILE… [--plant 60]

Each defect is planted in rows of its own; findings on the clean file count neither for nor against
(they may be real). Precision = planted / all rows that the planting made the reason be found for.
"""

import argparse
import copy
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alignax.cli.auditing import audit_rows
from alignax.data.sources import open_rows
from alignax.recipe import DataSection

Row = dict[str, Any]
"""A row of a file, in whatever format it has."""


def _sides(row: Row, side: str, change: Callable[[str], Any]) -> Row:
    """Change the answer on one side, whatever the row's format."""
    row = copy.deepcopy(row)
    value = row[side]
    if isinstance(value, str):
        head, mark, answer = value.rpartition("\n\nAssistant: ")
        changed = change(answer)
        row[side] = head + mark + changed if mark and isinstance(changed, str) else changed
    else:
        turn = value[-1] if isinstance(value, list) else value
        turn["content" if "content" in turn else "value"] = change(_said(row, side))
    return row


def _said(row: Row, side: str) -> str:
    value = row[side]
    if isinstance(value, str):
        return value.rpartition("\n\nAssistant: ")[2]
    turn = value[-1] if isinstance(value, list) else value
    return turn.get("content", turn.get("value"))


def _insert(mark: str) -> Callable[[Row, random.Random], Row]:
    """Put a mark between two words of the answer of a side."""

    def plant(row: Row, draw: random.Random) -> Row:
        def change(text: str) -> str:
            words = text.split(" ")
            place = draw.randrange(1, max(len(words), 2))
            return " ".join([*words[:place], mark, *words[place:]])

        return _sides(row, draw.choice(["chosen", "rejected"]), change)

    return plant


def _garbled(row: Row, draw: random.Random) -> Row:
    word = draw.choice(["café", "“quoted”", "don’t", "naïve", "Zürich", "señor", "5 €", "déjà vu"])
    bad = word.encode().decode("cp1252", "replace")
    return _insert(bad if "\ufffd" not in bad else "donâ€™t")(row, draw)


def _swapped(row: Row, draw: random.Random) -> Row:
    del draw
    return {**row, "chosen": row["rejected"], "rejected": row["chosen"]}


def _nearly(row: Row, draw: random.Random) -> Row:
    """Change about a word in thirty of both answers."""

    def change(text: str) -> str:
        words = text.split(" ")
        for _ in range(max(len(words) // 30, 1)):
            if len(words) > 12:
                words[draw.randrange(len(words))] = draw.choice(["really", "however", "thing"])
        return " ".join(words) + draw.choice(["", " ", "!", " Thanks."])

    return _sides(_sides(row, "chosen", change), "rejected", lambda text: text.upper())


def _same(row: Row, draw: random.Random) -> Row:
    del draw
    return {**row, "rejected": copy.deepcopy(row["chosen"])}


def _spaced(row: Row, draw: random.Random) -> Row:
    text = _said(row, "chosen")
    changed = draw.choice([text + "\n", text.upper(), text.replace(" ", "  "), " " + text.lower()])
    changed = changed if changed != text else text + "\n\n"
    if isinstance(row["chosen"], str) and "\n\nAssistant: " in row["chosen"]:
        changed = text.upper() if text.upper() != text else text.lower()
    return _sides(_same(row, draw), "rejected", lambda _: changed)


def _lost(row: Row, draw: random.Random) -> Row:
    side = draw.choice(["chosen", "rejected"])
    return {k: v for k, v in row.items() if k != side}


def _prompt_changed(row: Row, draw: random.Random) -> Row:
    row = copy.deepcopy(row)
    if isinstance(row["rejected"], str):
        row["rejected"] = row["rejected"].replace("Human: ", "Human: By the way, ", 1)
    else:
        row["rejected"][0]["content"] += " By the way?"
    del draw
    return row


def _two_users(row: Row, draw: random.Random) -> Row:
    row = copy.deepcopy(row)
    del draw
    for side in ("chosen", "rejected"):
        if isinstance(row[side], str):
            row[side] = "\n\nHuman: Hello there." + row[side]
        else:
            row[side].insert(0, {"role": "user", "content": "Hello there."})
    return row


def _scores(change: Callable[[float, float], tuple[float, float]]) -> Callable[..., Row]:
    def plant(row: Row, draw: random.Random) -> Row:
        del draw
        row = copy.deepcopy(row)
        holder = row if "score_chosen" in row else row["metadata"]
        high, low = sorted((holder["score_chosen"], holder["score_rejected"]), reverse=True)
        holder["score_chosen"], holder["score_rejected"] = change(high + 1, low)
        return row

    return plant


PLANTS: dict[str, Callable[[Row, random.Random], Row]] = {
    "exact_duplicate": lambda row, draw: copy.deepcopy(row),
    "near_duplicate": _nearly,
    "contradiction": _swapped,
    "identical_pair": _same,
    "identical_after_normalisation": _spaced,
    "empty_chosen": lambda row, draw: _sides(row, "chosen", lambda _: draw.choice(["", " ", "\n"])),
    "empty_rejected": lambda row, draw: _sides(row, "rejected", lambda _: ""),
    "null_field": lambda row, draw: {**row, draw.choice(["chosen", "rejected"]): None},
    "wrong_type": lambda row, draw: {**row, "chosen": draw.choice([5, True, 2.5])},
    "missing_field": _lost,
    "prompt_differs": _prompt_changed,
    "roles_not_alternating": _two_users,
    "role_label_in_answer": _insert("\nUser: and then?\nAssistant:"),
    "template_tokens": _insert("<|im_end|>"),
    "score_tie": _scores(lambda high, low: (high, high)),
    "score_label_disagree": _scores(lambda high, low: (low, high)),
    "control_character": _insert("\x08"),
    "replacement_character": _insert("caf\ufffd"),
    "mojibake": _garbled,
    "invisible_character": _insert("zero\u200bwidth"),
    "private_use_character": _insert("\uf0b7"),
    "personal_data": _insert("write to jane.doe@mail.example.org or call +44 20 7946 0958"),
}
COPIES = ("exact_duplicate", "near_duplicate", "contradiction")
"""Defects that need the row as it was, earlier in the file."""


def measure(path: str, count: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Plant ``count`` defects of each kind and compare findings with those of the clean file."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        rows = open_rows(path, cache_dir=cache)
        section = DataSection(path=path, cache=folder)
        before = audit_rows(section, kind="pair", workers=1)
        clean = [rows[i] for i in before.found.usable.nonzero()[0].tolist()]
        usable = [r for r in clean if {"chosen", "rejected"} <= r.keys()]
        result = {}
        for code, plant in PLANTS.items():
            draw = random.Random(f"{seed}{code}")
            taken = draw.sample(range(len(usable)), min(count, len(usable) // 2))
            try:
                planted = [plant(usable[i], draw) for i in taken]
            except (KeyError, TypeError, AttributeError):
                continue
            chosen = set() if code in COPIES else set(taken)
            rest = [row for i, row in enumerate(usable) if i not in chosen]
            result[code] = _found(code, rest, planted, cache)
        return result


def _found(code: str, rest: list[Row], planted: list[Row], cache: Path) -> dict[str, float]:
    """Audit clean rows with planted ones after them."""
    file = cache / f"{code}.jsonl"

    def audit(rows: list[Row]) -> set[int]:
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        section = DataSection(path=str(file), cache=str(cache))
        return set(audit_rows(section, kind="pair", workers=1).found.reasons().get(code, []))

    natural = audit(rest)
    new = audit([*rest, *planted]) - natural
    truth = set(range(len(rest), len(rest) + len(planted)))
    hits = len(new & truth)
    return {
        "planted": len(truth), "recall": hits / len(truth), "natural": len(natural),
        "precision": hits / len(new) if new else 0.0,
    }  # fmt: skip


def main() -> None:
    """Print a table for each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--plant", type=int, default=60)
    arguments = parser.parse_args()
    for path in arguments.files:
        print(path)
        for code, found in measure(path, arguments.plant).items():
            mark = "" if found["recall"] >= 0.98 and found["precision"] >= 0.95 else "   <--"
            print(
                f"  {code:32} planted {found['planted']:4} recall {found['recall']:.3f} "
                f"precision {found['precision']:.3f} natural {found['natural']}{mark}"
            )


if __name__ == "__main__":
    main()
