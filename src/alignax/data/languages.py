# SPDX-License-Identifier: Apache-2.0
"""The language of a text, coarsely: its script, and for Latin letters its commonest small words."""

import re
import unicodedata
from collections import Counter
from functools import lru_cache

SMALL_WORDS = {
    "English": "the and of to is in that for it with you are this be as on not have was",
    "German": "der die und das ist nicht ein eine zu mit den von für auf sie ich auch wie",
    "French": "le la les et des est une dans pour que qui vous pas sur avec du au ce",
    "Spanish": "el los las que en y por con una para es del se como su al más pero",
    "Portuguese": "o os que e do da em um uma para com não é por mais dos como ao",
    "Italian": "il di che e la per un una non sono con del della è gli le si come",
    "Dutch": "de het een en van ik dat niet is op te voor met zijn je aan er ook",
    "Polish": "i w nie na się z do że jest to jak co ale po od za przez lub",
    "Turkish": "bir ve bu da de için ile çok ne gibi daha olarak var değil en mi kadar ben",
    "Vietnamese": "là của và có cho không được trong một những các với người này để khi đã từ",
    "Swedish": "och att det som en är på av för med den till inte har jag om ett kan",
    "Indonesian": "yang dan di untuk dengan ini itu dari pada adalah tidak dalam akan anda atau",
}  # fmt: skip

SCRIPTS = {
    "CYRILLIC": "Cyrillic", "CJK": "Chinese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese",
    "HANGUL": "Korean", "ARABIC": "Arabic script", "HEBREW": "Hebrew", "DEVANAGARI": "Devanagari",
    "GREEK": "Greek", "THAI": "Thai", "TAMIL": "Tamil", "BENGALI": "Bengali", "KHMER": "Khmer",
    "MYANMAR": "Burmese", "TELUGU": "Telugu", "GEORGIAN": "Georgian", "ARMENIAN": "Armenian",
}  # fmt: skip

LOOKED_AT = 600
"""Characters of a text that are looked at."""

LEAST = 3
"""Small words that must be found before a language is named."""

_WORD = re.compile(r"[^\W\d_]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_VOTES: dict[str, list[str]] = {}
for _language, _words in SMALL_WORDS.items():
    for _word in _words.split():
        _VOTES.setdefault(_word, []).append(_language)


def language(text: str) -> str:
    """Name the language or script of a text; ``"unclear"`` if it does not show."""
    text = text[:LOOKED_AT]
    if not text.isascii():
        scripts = Counter(map(_script, filter(str.isalpha, _NOT_ASCII.findall(text))))
        scripts["Latin"] += len(text) - len(_NOT_ASCII.findall(text))
        if scripts["Japanese"] and scripts["Japanese"] + scripts["Chinese"] > scripts["Latin"]:
            return "Japanese"
        best, count = scripts.most_common(1)[0] if scripts else ("Latin", 0)
        if best != "Latin" and count > 3:
            return best
    votes = Counter(v for word in _WORD.findall(text.casefold()) for v in _VOTES.get(word, ()))
    top = votes.most_common(2)
    if not top or top[0][1] < LEAST or (len(top) > 1 and top[0][1] == top[1][1]):
        return "unclear"
    return top[0][0]


@lru_cache(1 << 14)
def _script(character: str) -> str:
    name = unicodedata.name(character, "").partition(" ")[0]
    return SCRIPTS.get(name, "Latin" if name == "LATIN" else "other")
