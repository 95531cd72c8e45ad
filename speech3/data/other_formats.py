"""Formats that hold transcripts among other things, and that are not read as plain sentences or Kaldi's text.

Read as such, their marks, names and times would be taken for words.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

# How the file begins or ends, and what it is.
_BEGINNINGS = {
    "#!MLF!#": "an HTK label file",
    "WEBVTT": "WebVTT subtitles",
    "<?xml": "XML",
    "<!DOCTYPE": "XML or HTML",
    "<html": "HTML",
    "<SYSTEM": "sclite's output (SGML)",
    'File type = "ooTextFile': "a TextGrid",
    "\\data\\": "an ARPA language model",
}
_ENDINGS = {
    ".json": "JSON", ".jsonl": "JSON", ".csv": "a table (CSV)", ".srt": "subtitles", ".vtt": "subtitles",
    ".mlf": "an HTK label file", ".textgrid": "a TextGrid", ".eaf": "an ELAN file", ".xml": "XML", ".rttm": "RTTM",
    ".sgml": "sclite's output (SGML)", ".pra": "sclite's output", ".docx": "a Word document", ".pdf": "a PDF",
}  # fmt: skip
_RTTM = ("SPEAKER", "SPKR-INFO", "LEXEME", "NON-LEX", "SEGMENT", "SU", "NOSCORE", "NO_RT_METADATA")
_TABLE_HEADS = """
    sentence text transcript transcription words path client_id utterance utt_id id wav audio file filename wav_filename
    wav_filesize audio_filepath duration speaker speaker_id word phones pronunciation
"""
_MARKS = {"\t": "TSV", ",": "CSV", ";": "CSV", "|": "CSV"}


def other_format(path: Path | str, lines: Sequence[str]) -> str:
    """What a file is, by its name and its first lines, if it is of such a format; else empty.

    >>> other_format("corpus", ['{"audio_filepath": "a.wav", "text": "one two"}'])
    'JSON'
    """
    text = "\n".join(lines)
    filled = [line.strip() for line in lines if line.strip()]
    first = filled[0] if filled else ""
    what = _ENDINGS.get(Path(path).suffix.lower(), "")
    what = what or next((name for begin, name in _BEGINNINGS.items() if first.startswith(begin)), "")
    if "\0" in text:
        return "binary"
    if what:
        return what
    if first[:1] in ("{", "[") and _is_json(text, first):
        return "JSON"
    if any(re.match(r"\d+:\d\d:\d\d[,.]\d+ --> ", line) for line in filled[:10]):
        return "subtitles"
    fields = [line.split() for line in filled if not line.startswith(";;")]
    if fields and all(len(row) >= 8 and row[0] in _RTTM for row in fields):
        return "RTTM"
    return next((f"a table with a heading ({name})" for mark, name in _MARKS.items() if _is_table(filled, mark)), "")


def _is_table(lines: Sequence[str], mark: str) -> bool:
    head = lines[0].split(mark) if lines else []
    names = _TABLE_HEADS.split()
    known = sum(name.strip(' "').lower() in names for name in head)
    return known > 1 and all(line.count(mark) >= len(head) - 1 for line in lines)


def _is_json(text: str, first: str) -> bool:
    for part in (first, text):
        try:
            value = json.loads(part)
        except ValueError:
            continue
        if isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(x, dict | list | str) for x in value)
        ):
            return True
    return False
