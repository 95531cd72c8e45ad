"""Reads references and hypotheses as Kaldi text (`utterance words ...`) or plain sentences; normalises them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import jiwer

from speech3.corpus.normalize import normalize_text
from speech3.corpus.sentences import looks_like_ids
from speech3.errors import Speech3Error
from speech3.io.text import read_utf8

Reading = Literal["kaldi", "plain"]


# Scripts written without spaces between words: CJK (with its punctuation and 〇), kana, Bopomofo, Thai, Lao, Burmese,
# Khmer. A space next to one of their letters only shows how the text was segmented into words.
_UNSPACED = "\u3001-\u30ff\u3105-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED += "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_NO_SPACE = re.compile(rf"(?<=[{_UNSPACED}]) | (?=[{_UNSPACED}])")


def characters(text: str) -> str:
    """The characters that CER counts: words joined by single spaces, without spaces in scripts that do not use them.

    So ``三 百`` and ``三百`` are the same two characters, as in Kaldi's recipes for Mandarin, and ``a cat`` is five.
    """
    return _NO_SPACE.sub("", " ".join(text.split()))


def character_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """CER over all utterances, a fraction."""
    return float(jiwer.cer([characters(text) for text in references], [characters(text) for text in hypotheses]))


def phone_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """PER over all utterances, a fraction; phones are first mapped to `PHONE_CLASSES`."""
    folded = [[normalize_text(text, PHONE_CLASSES) for text in side] for side in (references, hypotheses)]
    return float(jiwer.wer(folded[0], folded[1]))


PHONE_CLASSES = ("phones39",)  # the normalisation for phone error rates
ERROR_RATES: dict[str, Callable[[list[str], list[str]], float]] = {
    "WER": jiwer.wer, "CER": character_error_rate, "PER": phone_error_rate
}  # fmt: skip


def _lines(path: Path | str) -> list[str]:
    # Not splitlines(): a vertical tab or U+2028 in a transcript does not end the line.
    lines = read_utf8(path).split("\n")
    if not lines[-1].strip():
        lines.pop()
    return lines


def _parse_kaldi(path: Path | str, lines: list[str]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not (fields := line.split(maxsplit=1)):
            continue
        if fields[0] in entries:
            raise Speech3Error(
                f"{path}:{number}: utterance {fields[0]} occurs a second time; keep one of the two lines"
            )
        entries[fields[0]] = fields[1].strip() if len(fields) > 1 else ""
    return entries


def read_text(path: Path | str) -> dict[str, str]:
    """Read a Kaldi text file: utterance id to its words; a line with only an id is an utterance without words.

    Raises
    ------
    Speech3Error
        The file is missing, not UTF-8, or names an utterance twice.
    """
    return _parse_kaldi(path, _lines(path))


def _guess(paths: Sequence[Path | str], files: list[list[str]]) -> Reading:
    firsts = [[line.split(maxsplit=1)[0] for line in lines if line.strip()] for lines in files]
    repeated = any(len(set(ids)) < len(ids) for ids in firsts)
    if repeated or any(not line.strip() for lines in files for line in lines):
        return "plain"  # a sentence may be empty, but a line of Kaldi text may not
    shared = [len(set(firsts[0]) & set(ids)) for ids in firsts[1:]]
    overlap = all(2 * count >= min(len(ids), len(firsts[0])) for count, ids in zip(shared, firsts[1:], strict=True))
    alike = [looks_like_ids(ids, lines) for ids, lines in zip(firsts, files, strict=True)]
    if overlap and (all(alike) or any(len(lines) != len(files[0]) for lines in files)):
        return "kaldi"
    if all(alike) and not overlap:
        raise Speech3Error(
            f"{paths[0]} and {paths[1]}: both look like Kaldi text, but fewer than half of their utterance ids agree "
            f"({firsts[0][0]}, {firsts[1][0]}); give files of the same set, or set --format"
        )
    return "plain"


def _plain(paths: Sequence[Path | str], files: list[list[str]]) -> list[dict[str, str]]:
    texts = []
    for path, lines in zip(paths, files, strict=True):
        while len(lines) > len(files[0]) and not lines[-1].strip():
            lines.pop()
        if len(lines) != len(files[0]):
            raise Speech3Error(
                f"{path} has {len(lines)} lines, {paths[0]} has {len(files[0])}: files of plain text must have one "
                "sentence per line and the same number of lines; in Kaldi text each line must begin with an utterance "
                "id that is in both files (--format)"
            )
        texts.append({f"line-{number}": line.strip() for number, line in enumerate(lines, 1)})
    return texts


def read_texts(
    paths: Sequence[Path | str], reading: Reading | Literal["auto"] = "auto"
) -> tuple[list[dict[str, str]], Reading]:
    """Read a reference and one or more hypotheses, all Kaldi text or all plain text.

    Parameters
    ----------
    paths
        The reference first.
    reading
        ``kaldi``: each line is an utterance id and its words. ``plain``: one sentence per line; the n-th line of one
        file is compared with the n-th of the other. ``auto``: Kaldi if the first fields are unique in each file, look
        like ids and agree in most lines.

    Returns
    -------
    texts, reading
        Per file, utterance to text; and how the files were read, ``kaldi`` or ``plain``.

    Raises
    ------
    Speech3Error
        A file is missing or empty, ids are repeated or do not agree, or plain files differ in their number of lines.
    """
    files = [_lines(path) for path in paths]
    for path, lines in zip(paths, files, strict=True):
        if not any(line.strip() for line in lines):
            raise Speech3Error(
                f"{path}: is empty, so there is nothing to score; if it is a hypothesis, nothing was decoded: decode "
                f"again"
            )
    taken: Reading = _guess(paths, files) if reading == "auto" else reading
    if taken == "plain":
        return _plain(paths, files), taken
    return [_parse_kaldi(path, lines) for path, lines in zip(paths, files, strict=True)], taken


def find_speakers(
    ref: Path, texts: dict[str, str], reading: Reading, utt2spk: Path | None
) -> tuple[dict[str, str] | None, str]:
    """Speakers of the utterances of `texts`, and one line that says where they come from.

    By default they are read from the `utt2spk` beside `ref`, if it names every utterance.

    Raises
    ------
    Speech3Error
        `utt2spk` cannot be read or lacks an utterance.
    """
    beside = ref.parent / "utt2spk"
    if utt2spk is None and (reading == "plain" or not beside.is_file()):
        return None, "not known (--utt2spk FILE)"
    path = utt2spk or beside
    speakers = read_text(path)
    lacking = next((name for name in texts if not speakers.get(name)), None)
    if lacking is None:
        return speakers, str(path)
    if utt2spk is None:
        return None, f"not known: {path} lacks {lacking}"
    raise Speech3Error(f"{path}: utterance {lacking} has no speaker; add one")
