"""What people write into transcripts besides words: tags, names of speakers, noises in parentheses, emoji.

Read as words, ``<b>hello</b>`` would be a noise, a word and a noise, and ``SPEAKER1: hello (laughter)`` three words.
What is certain is removed, or becomes a noise in square brackets; what may be said stays. Both are reported.
"""

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from speech3.data.datadir import SYMBOLS

_TAG = re.compile(r"<(/?)([A-Za-z][\w.:-]*)((?:\s[^<>]*?)?)(/?)>")
_STAMP = re.compile(r"<\d+:[\d:.,]+>")  # of WebVTT
_BREAKS = {"br", "p", "div", "li", "hr", "tr", "td"}  # between words
_CLEAR = {"font", "span", "html", "body", "img", "div"}  # tags of HTML even without a closing one
_SHORT = {*_BREAKS, "a"} - _CLEAR  # tags only beside other ones: some corpora write pauses and breath so
_STYLES = {"b", "i", "u", "em", "strong", "c", "v"}
_ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[0-9A-Fa-f]{1,5});")
_ROLES = (
    "(?:speaker|spkr?|interview(?:er|ee)|moderator|participant|respondent|informant|sprecher(?:in)?|locut(?:eur|rice))"
)
_NUMBER = "(?:[ _-]?[0-9]{1,3}|[ _-](?:[a-z]|one|two|three|four))?"
_NAME = r"[^\W\d_][\w .'-]{0,24}?"
_LABEL = re.compile(rf"^[ \t]*(>>|-)?[ \t]*(?:\[({_NAME})\]|({_NAME}))[ \t]*:(?=\s)", re.MULTILINE)
_SPEAKER = re.compile(_ROLES + _NUMBER, re.IGNORECASE)
_MOST_LABEL_WORDS = 3
_APART = re.compile(r"\(\((?P<guess>[^()]*)\)\)|\((?P<round>[^()]*)\)|\*(?P<star>[^*\n]+)\*")
# What nobody hears; what somebody does, which is not part of a sentence; and sounds, which may be words of one.
_EVENTS = re.compile(
    r"(?i)(?:(?:soft|loud|light|heavy|deep|background|chuckles|speaks?|clears?|foreign|in)\W+)*"
    r"(?:(?P<unheard>inaudible|unintelligible|indistinct|crosstalk|unverständlich)"
    r"|(?P<action>laugh(?:s|ter)|chuckles|giggles|coughs|inhales|exhales|sighs|sniffs|sneezes|yawns|sobs|cries"
    r"|(?<=clears )throat|rires?|toux|lacht|hustet|risas?|tos|risata|смех|кашель)"
    r"|laugh(?:ing|ed)?|chuckle|giggle|cough(?:ing)?|breath(?:s|es|ing)?|inhale|exhale|sigh|sniff|sneeze|yawn|sob"
    r"|crying|throat|noise|music|applause|clapping|pause|long pause|silence|beep|click|overlap|unclear|language|musique"
    r"|lachen|husten|musik|música|музыка|шум)(?:\W+\d*)?"
)
_NUMBERED = re.compile(r"^[ \t]*(\d{1,4})[.)][ \t]+(?=\S)", re.MULTILINE)
_LEAST_NUMBERED = 3  # lines
_SIGN = re.compile(r"(?<!\S)[%&@§](?!\S)|(?<=\d)[%‰]")  # punctuation in Unicode, but said as a word
_BORDERS = "\n.,;:!?…—–()[]<>।。、，！？؟،"  # of sentences and their parts
_EMOJI = "\u2600-\u266c\u2670-\u2767\u2794-\u27bf\U0001f000-\U0001f0ff\U0001f1e6-\U0001faff"  # and notes; not ♭ ♮ ♯ ❶
_EMOJI_WORD = re.compile(f"[{_EMOJI}][{_EMOJI}\u200d\ufe0e\ufe0f]*")


class Remark(NamedTuple):
    """A kind of markup in a transcript: a few words, what it has, and what becomes of it."""

    kind: str
    problem: str
    handling: str


def without_markup(text: str, graphemes: Sequence[str] = ()) -> tuple[str, list[Remark]]:
    """A transcript without what is not said in it, and what was found.

    Characters of the `graphemes`, such as a colon or a star, are letters, not markup.

    >>> without_markup("<i>Yes</i> (laughs)")[0]
    'Yes [laughs]'
    """
    remarks: list[Remark] = []
    letters = set("".join(graphemes))
    if letters.isdisjoint("<>&"):
        text = _without_tags(text, remarks)
    text = _without_numbers(text, remarks)
    if letters.isdisjoint(":"):
        text = _without_speakers(text, remarks)
    text = _with_noises(text, letters, remarks)
    if letters.isdisjoint("%&@§‰") and (sign := _SIGN.search(text)):
        handling = "it is left out; write it as a word if it is said"
        remarks.append(Remark("sign or word", f"has {sign[0]}", handling))
    emoji = [word for word in text.split() if _EMOJI_WORD.fullmatch(word) and letters.isdisjoint(word)]
    if emoji:
        remarks.append(Remark("emoji or symbol", f"has {emoji[0]}, which nobody says", "it is left out"))
        text = " ".join(word for word in text.split() if word not in emoji)
    return text, remarks


def _without_tags(text: str, remarks: list[Remark]) -> str:
    if _ENTITY.search(text) and (plain := html.unescape(text)) != text:
        remarks.append(Remark("HTML in text", f"has {_ENTITY.findall(text)[0]}", "it is read as in HTML"))
        text = plain.replace("\xa0", " ")
    tags = [(slash, name.lower(), more, end) for slash, name, more, end in _TAG.findall(text)]
    closed = {name for slash, name, *_ in tags if slash}
    is_html = any(
        name in _CLEAR or ((slash or end or "=" in more) and name in _SHORT | _STYLES)
        for slash, name, more, end in tags
    )
    removed, single = list[str](), list[str]()

    def replaced(tag: re.Match[str]) -> str:
        slash, name, more, _ = tag.groups()
        name = name.lower().partition(".")[0]
        alone = name in _CLEAR or (name in _SHORT and is_html) or (name == "v" and more)
        alone = alone or (name in _STYLES | _SHORT and "=" in more)
        if f"<{name}>" in SYMBOLS or not (name in closed or alone):
            if name in _STYLES | _SHORT and not slash:
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


def _without_numbers(text: str, remarks: list[Remark]) -> str:
    """The text without the numbers of its lines, if all of several lines have one, from 0 or 1 upwards.

    Two lines may begin with dates or ordinals: 1. Januar, 2. Januar.
    """
    numbers = [int(number) for number in _NUMBERED.findall(text)]
    lines = sum(bool(line.strip()) for line in text.splitlines())
    if len(numbers) < max(lines, _LEAST_NUMBERED) or numbers not in (list(range(lines)), list(range(1, lines + 1))):
        return text
    remarks.append(Remark("number in text", f"has {numbers[0]} before its first line", "numbers of lines are left out"))
    return _NUMBERED.sub("", text)


def _without_speakers(text: str, remarks: list[Remark]) -> str:
    sure, unsure = list[str](), list[str]()

    def replaced(label: re.Match[str]) -> str:
        mark, boxed, bare = label.groups()
        name = boxed or bare
        is_name = not any(word[0].islower() for word in name.split()) and not _EVENTS.fullmatch(name)
        if _SPEAKER.fullmatch(name) or (is_name and (boxed or mark == ">>")):
            sure.append(name)
            return " "
        if name[:1].isupper() and len(name.split()) <= _MOST_LABEL_WORDS:
            unsure.append(name)
        return label[0]

    changed = _LABEL.sub(replaced, text) if ":" in text else text
    if sure:
        remarks.append(Remark("speaker in text", f"has {sure[0]}: before its words", "names of speakers are left out"))
    if unsure:
        handling = "it counts as said; remove it if it is the speaker"
        remarks.append(Remark("speaker or word", f"begins with {unsure[0]} before a colon", handling))
    return changed


def _with_noises(text: str, letters: set[str], remarks: list[Remark]) -> str:
    noises, words = list[str](), list[str]()

    def replaced(apart: re.Match[str]) -> str:
        group = apart.lastgroup or ""
        inner, event = apart[group].strip(), _EVENTS.fullmatch(apart[group].strip())
        if not letters.isdisjoint("*" if group == "star" else "()"):
            return apart[0]
        if (event and _is_apart(apart, event)) or (group == "guess" and not inner):
            noises.append(apart[0])
            return f" [{inner or 'unintelligible'}] "
        if event or (inner and group != "star"):  # other words in stars are emphasised
            words.append(apart[0])
        return apart[0]

    changed = _APART.sub(replaced, text) if "(" in text or "*" in text else text
    if noises:
        remarks.append(Remark("noise in text", f"has {noises[0]}", "it is a noise, not a word"))
    if words:
        handling = "these words count as said; if they are noises, put them in square brackets"
        remarks.append(Remark("word or noise", f"has {words[0]}", handling))
    return changed if not noises else " ".join(changed.split())


def _is_apart(found: re.Match[str], event: re.Match[str]) -> bool:
    """Whether a known event is one here, not a word of its sentence: ``I went. (Music)``, not ``the (music) room``."""
    before, after = found.string[: found.start()].rstrip(" \t"), found.string[found.end() :].lstrip(" \t")
    begins, ends = not before or before[-1] in _BORDERS, not after or after[0] in _BORDERS
    if found.lastgroup == "star":
        return begins and ends
    return bool(event["unheard"]) or (begins and ends) or (bool(event["action"]) and (begins or ends))
