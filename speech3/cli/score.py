"""`speech3 score`: error rates of hypotheses."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from speech3.scoring.wer import Comparison, Score


class Format(StrEnum):
    """How REF and HYP are read."""

    auto = "auto"
    kaldi = "kaldi"
    plain = "plain"


def command(
    ref: Annotated[Path, typer.Argument(metavar="REF", help="What was said.", show_default=False)],
    hyp: Annotated[Path, typer.Argument(metavar="HYP", help="What was recognised.", show_default=False)],
    against: Annotated[Path | None, typer.Option(metavar="HYP2", help="Another system: is it different?")] = None,
    normalize: Annotated[str, typer.Option(metavar="STEPS", help="Some of nfkc,lower,punct; done in your order.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    utt2spk: Annotated[Path | None, typer.Option(help="Speakers; else the utt2spk beside REF, if any.")] = None,
    text_format: Annotated[Format, typer.Option("--format", help="Kaldi text, plain text, or find out.")] = Format.auto,
    details: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the full tables and alignments.")] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Write HYP's rates into MODEL_CARD.md there.")
    ] = None,
) -> None:
    """Word and character error rates, with 95 % intervals.

    `speech3 score data/test/text exp/dnn/decode/hyp.txt`

    Where `hyp.ctm` stands beside `hyp.txt`, its confidences are judged by their normalised cross-entropy (NCE). HYP may
    also be the lattices of `speech3 decode --lattice`: then the path with the fewest errors of each is scored (oracle):

    `speech3 score data/test/text exp/dnn/decode/lat.ark`

    REF and HYP are Kaldi text (`utterance words ...`) or plain text with one sentence a line. Nothing is normalised
    unless you say so: `--normalize nfkc,lower,punct`. Utterances missing from HYP count as deletions. CER counts the
    characters of the words joined by one space; but no space beside a letter of a script that has none (Chinese,
    Japanese, Thai, ...).

    Two systems, and whether their difference is more than chance:

    `speech3 score data/test/text tri/hyp.txt --against dnn/hyp.txt`

    All tables (`per_utt`, `per_speaker`, `confusions`, `alignments`): `--details DIR`. Into the card of the model that
    made HYP, for those who get it: `--card exp/dnn`.
    """
    from speech3.corpus.normalize import parse_steps
    from speech3.scoring import tables
    from speech3.scoring.confidence import confidence_lines, reliability_beside
    from speech3.scoring.text import find_speakers, read_texts
    from speech3.scoring.wer import compare, score

    steps = parse_steps(normalize)
    paths = [ref, hyp, *([against] if against else [])]
    if hyp.suffix == ".ark":
        from speech3.scoring.oracle import oracle_texts

        texts, reading = read_texts([path for path in paths if path != hyp], Format.kaldi.value)
        texts.insert(1, oracle_texts(hyp, texts[0]))
    else:
        texts, reading = read_texts(paths, text_format.value)
    speakers, speaker_note = find_speakers(ref, texts[0], reading, utt2spk)
    scores = [score(texts[0], text, speakers, steps) for text in texts[1:]]
    sure = reliability_beside(scores[0], hyp)
    comparison = compare(scores[0], scores[1]) if against else None
    if details:
        tables.write_details(details, scores[0])
    if card:
        from speech3.scoring.card import write_scores  # loads PyTorch

        write_scores(card, str(ref.parent), scores[0])
    warnings = [line for path, one in zip(paths[1:], scores, strict=True) for line in tables.warnings(one, str(path))]
    if as_json:
        print("".join(f"warning: {line}\n" for line in warnings), end="", file=sys.stderr)
        values = _as_json(scores, comparison) | ({"nce": sure.nce} if sure and sure.nce == sure.nce else {})
        print(json.dumps(values, indent=1, ensure_ascii=False))
        return
    kind = {"kaldi": "Kaldi text: an utterance id and its words", "plain": "plain text: one sentence a line"}[reading]
    print(f"read as     {kind}" + (" (found out; --format tells)" if text_format is Format.auto else ""))
    print(f"normalised  {', '.join(steps) or 'nothing'}\nspeakers    {speaker_note}\n")
    print(tables.full(scores[0]))
    if sure:
        print(f"\n{confidence_lines(sure)}")
    if comparison:
        print(f"\nagainst {against}\n{tables.summary(scores[1])}\n")
        print(tables.comparison_lines(comparison, str(hyp), str(against)))
    print("".join(f"\nwarning: {line}" for line in warnings))
    if details:
        print(f"tables in {details}")


def _as_json(scores: "list[Score]", comparison: "Comparison | None") -> dict[str, Any]:
    values = scores[0].as_json()
    if comparison:
        values["against"] = {**scores[1].as_json(), **comparison.as_json()}
    return values
