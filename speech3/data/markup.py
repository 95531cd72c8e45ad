"""What people write into transcripts besides words: tags, names of speakers, noises in parentheses, pictures.

Read as words, ``<b>hello</b>`` would be a noise, a word and a noise, and ``SPEAKER1: hello (laughter)`` three words.
What is certain is removed, or becomes a noise in square brackets; what is not stays. Both are remarked.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from speech3.data.datadir import SYMBOLS

_TAG = re.compile(r"<(/?)([A-Za-z][\w.:-]*)((?:\s[^<>]*)?)/?>")
_STAMP = re.compile(r"<\d+:[\d:.,]+>")  # of WebVTT
_BREAKS = {"br", "p", "div", "li", "hr", "tr", "td"}  # between words
_ALONE = {*_BREAKS, "font", "span", "html", "body", "img", "a"}  # tags even without a closing one
_STYLES = {"b", "i", "u", "em", "strong", "c", "v"}
_ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[0-9A-Fa-f]{1,5});")
_ROLES = "speaker|spkr?|interview(?:er|ee)|moderator|participant|respondent|informant|sprecher(?:in)?|locut(?:eur|rice)"
_LABEL = re.compile(r"^[ \t]*(?:>>|-)?[ \t]*\[?([^\W\d_][\w .'-]{0,24}?)\]?[ \t]*:(?=\s)", re.MULTILINE)
_SPEAKER = re.compile(rf"(?i:{_ROLES})[ _-]?\w{{0,3}}|[A-Z]\d{{0,2}}|[A-Z][A-Z_-]*[ _-]?\d{{1,3}}")
_MOST_LABEL_WORDS = 3
_APART = re.compile(r"\(\((?P<guess>[^()]*)\)\)|\((?P<round>[^()]*)\)|\*(?P<star>[^*\n]+)\*")
_NOISES = re.compile(
    r"(?i)(?:(?:soft|loud|light|heavy|deep|background|chuckles|speaks?|clears?|foreign|in)\W+)*(?:laugh(?:s|ter|ing|ed)?"
    r"|chuckles?|giggles?|cough(?:s|ing)?|breath(?:s|es|ing)?|inhales?|exhales?|sighs?|sniffs?|sneezes?|yawns?|sobs?"
    r"|cries|crying|throat|noise|music|applause|clapping|pause|long pause|silence|beep|click|crosstalk|overlap"
    r"|inaudible|unintelligible|indistinct|unclear|language|rires?|toux|inaudible|musique|lach(?:t|en)|husten|musik"
    r"|unverständlich|risas?|tos|música|risa(?:ta|te)|смех|кашель|музыка|шум)(?:\W+\d*)?"
)


class Remark(NamedTuple):
    """A kind of markup in a transcript: a few words, what it has, and what becomes of it."""

    kind: str
    problem: str
    fate: str


def without_markup(text: str, graphemes: Sequence[str] = ()) -> tuple[str, list[Remark]]:
    """A transcript without what is not said in it, and what was found.

    Colons are letters, not marks of speakers, if one of the `graphemes` has a colon.

    >>> without_markup("<i>Yes</i> (laughs)")[0]
    'Yes [laughs]'
    """
    remarks: list[Remark] = []
    text = _without_tags(text, remarks)
    if not any(":" in each for each in graphemes):
        text = _without_speakers(text, remarks)
    text = _with_noises(text, remarks)
    pictures = [word for word in text.split() if _is_picture(word)]
    if pictures:
        remarks.append(Remark("picture in text", f"has {pictures[0]}, which nobody says", "it is left out"))
        text = " ".join(word for word in text.split() if not _is_picture(word))
    return text, remarks


def _without_tags(text: str, remarks: list[Remark]) -> str:
    if _ENTITY.search(text) and (plain := html.unescape(text)) != text:
        remarks.append(Remark("HTML in text", f"has {_ENTITY.findall(text)[0]}", "it is read as in HTML"))
        text = plain.replace("\xa0", " ")
    closed = {name.lower() for slash, name, _ in _TAG.findall(text) if slash}
    removed, single = list[str](), list[str]()

    def replaced(tag: re.Match[str]) -> str:
        slash, name, more = tag.groups()
        name = name.lower().partition(".")[0]
        if f"<{name}>" in SYMBOLS or (name not in closed and name not in _ALONE and not (name in _STYLES and more)):
            if name in _STYLES and not slash:
                single.append(tag[0])
            return tag[0]
        removed.append(tag[0])
        return " " if name in _BREAKS else ""

    if "<" in text:
        removed += _STAMP.findall(text)
        text = _TAG.sub(replaced, _STAMP.sub(" ", text))
    if removed:
        remarks.append(Remark("HTML in text", f"has {removed[0]}, a tag", "tags are left out, their words are used"))
    if single:
        remarks.append(Remark("tag or noise", f"has {single[0]}, which is not closed", "it counts as a noise"))
    return text


def _without_speakers(text: str, remarks: list[Remark]) -> str:
    sure, unsure = list[str](), list[str]()

    def replaced(label: re.Match[str]) -> str:
        name, rest = label[1], text[label.end() :].split("\n", 1)[0]
        if _SPEAKER.fullmatch(name) or (name.isupper() and any(letter.islower() for letter in rest)):
            sure.append(name)
            return " "
        if name[:1].isupper() and len(name.split()) <= _MOST_LABEL_WORDS:
            unsure.append(name)
        return label[0]

    changed = _LABEL.sub(replaced, text) if ":" in text else text
    if sure:
        remarks.append(Remark("speaker in text", f"has {sure[0]}: before its words", "names of speakers are left out"))
    if unsure:
        fate = "it counts as said; remove it if it is the speaker"
        remarks.append(Remark("speaker or word", f"begins with {unsure[0]}:", fate))
    return changed


def _with_noises(text: str, remarks: list[Remark]) -> str:
    noises, words = list[str](), list[str]()

    def replaced(apart: re.Match[str]) -> str:
        inner = (apart[apart.lastgroup or 0]).strip()
        if _NOISES.fullmatch(inner) or (apart.lastgroup == "guess" and not inner):
            noises.append(apart[0])
            return f" [{inner or 'unintelligible'}] "
        if inner and apart.lastgroup != "star":
            words.append(apart[0])
        return apart[0]

    changed = _APART.sub(replaced, text) if "(" in text or "*" in text else text
    if noises:
        remarks.append(Remark("noise in text", f"has {noises[0]}", "it is a noise, not a word"))
    if words:
        fate = "these words count as said; if they are noises, put them in square brackets"
        remarks.append(Remark("words in parentheses", f"has {words[0]}", fate))
    return changed if not noises else " ".join(changed.split())


def _is_picture(word: str) -> bool:
    """Whether a word consists of notes, emoji and the like."""
    kinds = {unicodedata.category(letter) for letter in word}
    return "So" in kinds and kinds <= {"So", "Sk", "Mn", "Cf"}
