"""Forced alignment of a whole data set, and its outputs: pdfs, phones and words, for Kaldi, Praat and people."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error, check_bad
from speech3.hmm import passes
from speech3.hmm.alignment import Alignment
from speech3.hmm.lexicon import UNKNOWN, Lexicon
from speech3.hmm.model import Hmm
from speech3.hmm.passes import Scorer
from speech3.hmm.times import FrameClock, phone_stretches, word_stretches, write_ctm, write_textgrid
from speech3.hmm.vocabulary import check_vocabulary
from speech3.hmm.workers import Workers
from speech3.io.ark import write_ark
from speech3.io.atomic import write_text


@dataclass(frozen=True)
class Transcripts:
    """Words to align, all in the lexicon (or `<unk>`), and the utterances that cannot be, with the reason."""

    words: dict[str, list[str]]
    bad: dict[str, str]


def usable_transcripts(texts: Mapping[str, str | None], lexicon: Lexicon, utterances: Iterable[str]) -> Transcripts:
    """Sort out what can be aligned.

    Parameters
    ----------
    texts
        Transcript of each utterance.
    utterances
        Those that have features.

    Raises
    ------
    Speech3Error
        Most words of all transcripts are not in the lexicon.
    """
    utterances = list(utterances)
    check_vocabulary({utterance: texts.get(utterance) for utterance in utterances}, lexicon)
    words: dict[str, list[str]] = {}
    bad: dict[str, str] = {}
    for utterance in utterances:
        text = (texts.get(utterance) or "").split()
        if not text:
            bad[utterance] = "has no transcript"
            continue
        try:
            words[utterance] = lexicon.known(text)
        except Speech3Error as error:
            bad[utterance] = str(error)
    return Transcripts(words, bad)


def align(
    hmm: Hmm,
    scorer: Scorer,
    transcripts: Transcripts,
    feats: Mapping[str, np.ndarray],
    *,
    beam: float,
    retry_beam: float,
    jobs: int,
    acoustic_scale: float = 0.1,
) -> tuple[dict[str, Alignment], dict[str, str]]:
    """Align all transcripts; returns the alignments, in order, and the utterances left out, with the reason.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances are bad.
    """
    found: dict[str, Alignment] = {}
    bad = dict(transcripts.bad)
    if transcripts.words:
        with Workers(transcripts.words, feats, jobs) as workers:
            for part in workers.run(passes.realign, hmm, scorer, beam, retry_beam, acoustic_scale):
                bad.update(part)
            for share in workers.run(passes.alignments):
                found.update(share)
    check_bad(bad, len(transcripts.words) + len(transcripts.bad), "alignment")
    return dict(sorted(found.items())), bad


def write_alignments(
    out: Path,
    hmm: Hmm,
    alignments: Mapping[str, Alignment],
    texts: Mapping[str, str | None],
    clock: FrameClock,
    *,
    durations_s: Mapping[str, float] | None = None,
    bad: Mapping[str, str] | None = None,
    textgrids: bool = True,
) -> None:
    """Write ``ali.ark`` (Kaldi int32 vectors of pdfs), ``phones.ctm``, ``words.ctm``, ``textgrid/`` and ``bad.txt``.

    Words outside the lexicon keep their own spelling in the CTM, though they were aligned as `<unk>`.
    """
    out.mkdir(parents=True, exist_ok=True)
    durations = durations_s or {}
    phones = {u: phone_stretches(a, hmm.lexicon, clock, durations.get(u)) for u, a in alignments.items()}
    words = {
        u: word_stretches(a, (texts.get(u) or UNKNOWN).split(), clock, durations.get(u)) for u, a in alignments.items()
    }
    write_ark(out / "ali.ark", ((u, a.pdfs(hmm)) for u, a in alignments.items()))
    write_ctm(out / "phones.ctm", phones)
    write_ctm(out / "words.ctm", words)
    if textgrids:
        for utterance in alignments:
            tiers = {"words": words[utterance], "phones": phones[utterance]}
            name = utterance.replace("/", "_")
            write_textgrid(out / "textgrid" / f"{name}.TextGrid", tiers, phones[utterance][-1].end_s)
    write_text(out / "bad.txt", "".join(f"{u} {reason}\n" for u, reason in sorted((bad or {}).items())))
