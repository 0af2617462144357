# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with one text: damaged characters, template tokens, speakers, personal data."""

import re
from collections.abc import Iterable
from hashlib import blake2b

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]")
INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""Soft hyphen, zero-width and bidirectional marks, tag characters."""

JOINERS = "\u200c\u200d"
JOINED = re.compile(
    "[\u0590-\u08ff\u0900-\u0dff\u0e00-\u109f\u1780-\u17ff\ufb1d-\ufdff\ufe70-\ufefc"
    "\u200d\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]"
)
"""Neighbours between which a joiner is spelling: Semitic and Indic scripts, and emoji."""

MOJIBAKE = re.compile(
    "[\u00c2-\u00f4][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc"
    "\u2013\u2014\u2018-\u201a\u201c-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
    "|[\u0432\u0420\u0421\u201a][\u00c4\u2020\u201a\u2013-\u203a\u20ac\u0402-\u040f\u0450-\u045f"
    "\u00a0-\u00bf]|\u221a[\u00a0-\u00ff\u2020\u2202]"
)
"""A lead byte of UTF-8 and one that follows, read as Windows-1252, Latin-1, Windows-1251 or Mac."""

AROUND = 40
"""Characters on both sides of a suspicion that are given to ftfy."""

TEMPLATE = re.compile(
    r"<\|[A-Za-z][\w -]{1,40}\|>|<\uff5c[^\uff5c\n]{2,40}\uff5c>|\[/?INST\]|<</?SYS>>"
    r"|(?<![\w<])</?s>|</?(?:start|end)_of_(?:turn|image)>|<[be]os>|<\[?(?:EOS|BOS|PAD)\]?>"
    r"|\[(?:EOS|BOS|PAD|AVAILABLE_TOOLS|TOOL_CALLS)\]|<\|begin_of_text\|>"
    r"|^#{2,3} ?(?:Instruction|Response) ?:",
    re.MULTILINE,
)
"""Special tokens of ChatML, Llama, Mistral, Gemma, Phi, DeepSeek and Zephyr; Alpaca's headings."""

SPEAKER = re.compile(
    r"^[ \t]*(?:[#>*]+ ?)?(?:\*\*)?(?:Human|Assistant|User|Chatbot|Bot|AI|ChatGPT|GPT|Prompter"
    r"|HUMAN|ASSISTANT|USER)(?:\*\*)? ?:",
    re.MULTILINE,
)
"""A line that begins with a speaker's name."""

MAIL = re.compile(r"(?<![\w.%+-])[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,24}(?![\w-])")
PHONE = re.compile(
    r"(?<![\w.+/-])(?:"
    r"\+\d{1,3}(?:[ .-]?\(\d{1,4}\))?(?:[ .-]?\d{2,4}){2,5}"
    r"|(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"
    r"|555-\d{4}|0\d{2,4}[ -]\d{3,4}[ -]\d{3,4}|0\d(?:[ .]\d{2}){4}"
    r")(?![\w/-]|[.,]\d)"
)
"""International numbers, and those of North America, Britain and France as they are written."""

DIGITS = re.compile(r"\d[\d .()-]{5,}\d")
"""What every telephone number holds; quicker to look for."""

MASKS = {"mail": "[e-mail]", "phone": "[phone]"}


def defects(text: str) -> set[str]:
    """Name what any text of a row may have, whoever says it."""
    found = set()
    if CONTROL.search(text):
        found.add("control_character")
    if not text.isascii():
        if "\ufffd" in text:
            found.add("replacement_character")
        if PRIVATE.search(text):
            found.add("private_use_character")
        if has_invisible(text):
            found.add("invisible_character")
        if has_mojibake(text):
            found.add("mojibake")
    if ("<" in text or "[" in text or "##" in text) and TEMPLATE.search(text):
        found.add("template_tokens")
    if has_personal_data(text):
        found.add("personal_data")
    return found


def has_invisible(text: str) -> bool:
    """Find marks that cannot be seen; joiners inside words of their scripts and emoji are none."""
    for match in INVISIBLE.finditer(text):
        at = match.start()
        if match[0] not in JOINERS:
            return True
        before, after = text[max(at - 1, 0) : at], text[at + 1 : at + 2]
        if not (JOINED.match(before) and (JOINED.match(after) or not after.strip())):
            return True
    return False


def has_mojibake(text: str) -> bool:
    """Find text that another character set would decode to something sensible."""
    from ftfy import fix_encoding

    end = -1
    for match in MOJIBAKE.finditer(text):
        if match.start() < end:
            continue
        end = match.end() + AROUND
        part = text[max(match.start() - AROUND, 0) : end]
        if fix_encoding(part) != part:
            return True
    return False


def has_personal_data(text: str) -> bool:
    """Find an e-mail address or a telephone number."""
    if "@" in text and MAIL.search(text):
        return True
    if not DIGITS.search(text):
        return False
    return any(_digits(match[0]) >= 8 or "555-" in match[0] for match in PHONE.finditer(text))


def _digits(text: str) -> int:
    count = sum(map(str.isdigit, text))
    return count if count <= 13 else 0


def masked(text: str) -> str:
    """Replace e-mail addresses and telephone numbers."""
    text = MAIL.sub(MASKS["mail"], text) if "@" in text else text
    return PHONE.sub(lambda m: MASKS["phone"] if has_personal_data(m[0]) else m[0], text)


def plays_speaker(answer: str) -> bool:
    """Tell whether an answer has a line that begins with a speaker's name."""
    return ":" in answer and SPEAKER.search(answer) is not None


def normalised(text: str) -> str:
    """Fold case and white space: what differs in these only says the same."""
    return " ".join(text.casefold().split())


def fingerprint(text: str) -> bytes:
    """Eight bytes that tell texts apart."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()


def any_defects(texts: Iterable[str]) -> set[str]:
    """Name what several texts have."""
    found: set[str] = set()
    for text in texts:
        found |= defects(text)
    return found
