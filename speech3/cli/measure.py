"""The verbs that measure results: `score` and `boundaries`."""

import json
import sys
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speech3.cli import _verb
from speech3.errors import SettingError, Speech3Error, listed

if TYPE_CHECKING:
    from speech3.evaluate import PairedTest, Score

_KINDS = {
    "kaldi": "Kaldi text: an utterance id and its words",
    "plain": "plain text: one sentence per line",
    "trn": "trn: words and an utterance id in parentheses",
    "stm": "stm: segments with times",
    "ctm": "ctm: words with times",
}


class Format(StrEnum):
    """How REF and HYP are read."""

    auto = "auto"
    kaldi = "kaldi"
    plain = "plain"
    trn = "trn"
    stm = "stm"
    ctm = "ctm"


def score(
    ref: Annotated[
        Path, typer.Argument(metavar="REF", help="Reference transcripts, or a folder with them.", show_default=False)
    ],
    hyp: Annotated[Path, typer.Argument(metavar="HYP", help="Recognised texts.", show_default=False)],
    against: Annotated[
        Path | None, typer.Option(metavar="HYP2", help="Texts of another system, compared with HYP.")
    ] = None,
    normalize: Annotated[
        str, typer.Option(metavar="STEPS", help="Any of nfkc,lower,punct,phones48,phones39; in the order given.")
    ] = "",
    lang: Annotated[
        str, typer.Option(metavar="CODE", help="Language of the texts, such as tr: for the step lower.")
    ] = "",
    as_json: _verb.Json = False,
    utt2spk: Annotated[Path | None, typer.Option(help="Speakers of utterances; default: utt2spk beside REF.")] = None,
    text_format: Annotated[
        Format, typer.Option("--format", help="Of the files; stm: REF is .stm, HYP .ctm. Default: detected.")
    ] = Format.auto,
    details: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the full tables and alignments to this directory.")
    ] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Write HYP's error rates into MODEL/MODEL_CARD.md.")
    ] = None,
    tier: _verb.Tier = None,
) -> None:
    """Compute word and character error rates with 95 % intervals.

    `speech3 score data/test/text exp/dnn/decode/hyp.txt`

    If there is a `hyp.ctm` beside `hyp.txt`, the normalised cross-entropy (NCE) of its confidences is printed. HYP may
    also be the lattices of `speech3 decode --lattice`: then the path with the fewest errors is scored in each (oracle):

    `speech3 score data/test/text exp/dnn/decode/lat.ark`

    REF and HYP are Kaldi text (`utterance words ...`), plain text with one sentence per line, or files of NIST's
    sclite: `.trn`, `.ctm`, and `.stm` as a reference for `.ctm`. Alternatives (`{ um / uh / @ }`), optional words in
    parentheses, comments (`;;`) and IGNORE_TIME_SEGMENT_IN_SCORING are scored as `sclite -D` does, but letter case
    counts: sclite's default is `--normalize lower`. Texts are compared as they are unless you normalise them:
    `--normalize nfkc,lower,punct`; if REF is a folder, both are compared in lower case and without punctuation.
    Utterances missing from HYP count as deletions; `<unk>` and `<noise>` are not words, and are left out of both texts.
    CER counts the characters of the words joined by single spaces, without a space next to a letter of a script that is
    written without spaces (Chinese, Japanese, Thai, ...).

    To compare two systems and test whether their difference is significant:

    `speech3 score data/test/text tri/hyp.txt --against dnn/hyp.txt`

    `--details DIR` writes all tables (`per_utt`, `per_speaker`, `confusions`, `alignments`). `--card exp/dnn` writes
    the error rates into the model card of the model that made HYP, for its users.
    """
    from speech3.corpora import is_folder, read_speech
    from speech3.data import case_doubts, lower_case, normalize_text, parse_steps, plain_words, write_datadir
    from speech3.evaluate import (
        Texts,
        confidence_lines,
        find_speakers,
        paired_test,
        read_all,
        read_ids,
        reliability_beside,
        score,
        tables,
        write_scores,
    )
    from speech3.language import check_language

    steps, given, of_folder = parse_steps(normalize), ref, is_folder(ref)
    if lang and "lower" not in steps:
        raise SettingError(f"--lang {lang}: only for the step lower; add it to --normalize, or remove the option")
    if lang:
        try:
            check_language(lang)
        except Speech3Error as error:
            raise error.restated(str(error).replace("lang=", "--lang ", 1)) from error
    if card:
        tables.check_card(card)
    if details:
        tables.check_details(details, [hyp, against, utt2spk, *([] if ref.is_dir() else [ref])])
    if ref.is_dir():  # a folder with transcripts, or a data directory
        scratch = TemporaryDirectory(prefix="speech3-")
        write_datadir(read_speech(ref, tier)[0], Path(scratch.name))
        ref = Path(scratch.name) / "text"
    elif tier:
        raise SettingError(f"--tier {tier}: only for a folder of recordings as REF; remove it")
    # Read the texts, or the best paths of lattices.
    paths = [ref, hyp, *([against] if against else [])]
    if any(path.suffix == ".ark" for path in paths[1:]):
        if card and hyp.suffix == ".ark":
            raise SettingError(
                f"--card {card}: the oracle error rate of lattices is not the model's; pass the text that it recognised"
            )
        if steps:
            raise SettingError(
                "--normalize: cannot be used with lattices; normalise REF so that its words are those of the lattice"
            )
        if text_format not in (Format.auto, Format.kaldi):
            raise SettingError(
                f"--format {text_format}: lattices have utterance ids; pass the reference as Kaldi text and leave this"
                " out"
            )
        if of_folder:
            raise SettingError(
                f"{given}: a folder's transcripts are compared as plain words, but a lattice has its model's words;"
                " pass the reference as Kaldi text, spelt as these"
            )
        from speech3.decode import oracle_texts

        others = [path for path in paths[1:] if path.suffix != ".ark"]
        reference = read_ids(ref)
        read = {path: read_ids(path) for path in others}
        found = [read.get(path) or oracle_texts(path, reference) for path in paths[1:]]
        texts = Texts([reference] * len(found), found, ("kaldi", "kaldi"))
    else:
        lower = partial(lower_case, language=lang)
        texts = read_all(paths, text_format.value, lambda text: normalize_text(text, steps, lower))
        if of_folder:  # its transcripts have become plain words, so what was recognised must, too
            plain = [{name: plain_words(text) for name, text in each.items()} for each in texts.hypotheses]
            texts = replace(texts, hypotheses=plain)
    speakers, speaker_note = texts.speakers, str(given)
    if speakers is None or utt2spk:
        speakers, speaker_note = find_speakers(ref, texts.references[0], texts.readings[0], utt2spk)
        if of_folder and not utt2spk:
            speaker_note = f"of the tiers, subfolders or names of recordings in {given}"
        elif ref != given:
            speaker_note = speaker_note.replace(str(ref.parent), str(given))
    # Score them, and write what was asked for.
    scores = [
        score(reference, text, speakers, steps, language=lang)
        for reference, text in zip(texts.references, texts.hypotheses, strict=True)
    ]
    reliability = reliability_beside(scores[0], hyp)
    paired = paired_test(scores[0], scores[1]) if against else None
    if details:
        tables.write_details(details, scores[0])
    if card:
        write_scores(card, str(ref.parent if ref == given else given), scores[0])
    warnings = [*texts.notes]
    written = [text for side in (*texts.references[:1], *texts.hypotheses) for text in side.values()]
    if "lower" in steps and not lang and (doubt := case_doubts(written)):
        warnings.append(doubt.replace("lang=", "--lang "))
    warnings += [line for path, one in zip(paths[1:], scores, strict=True) for line in tables.warnings(one, str(path))]
    # Print.
    if as_json:
        print("".join(f"warning: {line}\n" for line in warnings), end="", file=sys.stderr)
        values = _as_json(scores, paired)
        if reliability and reliability.nce == reliability.nce:  # not NaN
            values["nce"] = reliability.nce
        print(json.dumps(values, indent=1, ensure_ascii=False))
        return
    kinds = "; ".join(_KINDS[kind] for kind in dict.fromkeys(texts.readings))
    print(f"read as     {kinds}" + (" (detected; set it with --format)" if text_format is Format.auto else ""))
    done = [*(["plain words (lower case, no punctuation), as of any folder"] if of_folder else []), *steps]
    print(f"normalised  {', '.join(done) or 'nothing'}\nspeakers    {speaker_note}\n")
    print((f"{hyp}\n" if paired else "") + tables.full(scores[0]))
    if reliability:
        print(f"\n{confidence_lines(reliability)}")
    if paired:
        print(f"\n{against}\n{tables.summary(scores[1])}\n")
        print(tables.paired_test_lines(paired, str(hyp), str(against)))
    print("".join(f"\nwarning: {line}" for line in warnings))
    if details:
        print(f"tables in {details}")


def _as_json(scores: "list[Score]", paired: "PairedTest | None") -> dict[str, Any]:
    values = scores[0].as_json()
    if paired:
        values["against"] = {**scores[1].as_json(), **paired.as_json()}
    return values


class Level(StrEnum):
    """What a CTM holds."""

    words = "words"
    phones = "phones"


def boundaries(
    ref: Annotated[
        Path, typer.Argument(metavar="REF", help="Reference: TextGrids, CTM, .phn and .wrd, or a folder of them.")
    ],
    hyp: Annotated[Path, typer.Argument(metavar="HYP", help="Times to be measured, in any of these forms.")],
    level: Annotated[
        Level | None, typer.Option(help="What a CTM holds whose name contains neither word nor phone.")
    ] = None,
    words_tier: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tier of words in TextGrids. Default: words.")
    ] = None,
    phones_tier: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tier of phones in TextGrids. Default: phones.")
    ] = None,
    as_json: _verb.Json = False,
) -> None:
    """Measure the errors of word and phone boundaries against reference times, such as hand labels.

    `speech3 boundaries TIMIT/TEST exp/aligned`

    REF and HYP may be of different forms: a TextGrid, a CTM, one of TIMIT's `.phn` or `.wrd` files (in samples at 16
    kHz; closures are joined with their releases), or a folder of such files, as `speech3 align` and the Montreal Forced
    Aligner write them. Utterances are matched by their names: letter case does not matter, `/`, `_` and `-` are the
    same, and `DR1/FCJF0/SI648` is `fcjf0-si648`.

    Words and phones are matched in order. Labels may differ (`AH0` is `ah`); what has no counterpart is counted and not
    measured. Printed are, for word starts, word ends, boundaries inside words, between phones, after and before
    silence, and for each pair of phone classes: the mean and median absolute error, the share of boundaries within 5,
    10, 20, 25 and 50 ms, and the bias (positive: HYP is late).
    """
    from speech3.evaluate import compare, level_in_name, read_times, table
    from speech3.hmm import Level as Kind
    from speech3.runtime import say

    named: dict[Kind, str | None] = {"words": words_tier, "phones": phones_tier}
    tiers = {kind: name for kind, name in named.items() if name}
    given: Kind | None = level.value if level else None
    reference = read_times(ref, given or level_in_name(hyp), tiers)
    hypothesis = read_times(hyp, given or level_in_name(ref), tiers)
    kinds = {reference.kind, hypothesis.kind}
    if level and "CTM" not in kinds:
        raise SettingError(f"--level {level}: only for CTM, and these are none; remove it")
    if tiers and "TextGrid" not in kinds:
        raise SettingError(f"--{next(iter(tiers))}-tier: only for TextGrids, and these are none; remove it")
    found = compare(reference, hypothesis)
    if found.missing:
        say(f"warning: {len(found.missing)} utterances are not in {hyp}, such as {listed(found.missing)}")
    if as_json:
        print(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
        return
    print(f"reference    {ref} ({reference.kind})\nhypothesis   {hyp} ({hypothesis.kind})\n")
    print(table(found))
