"""`speech3 score`: error rates of hypotheses."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from speech3.scoring.wer import PairedTest, Score


class Format(StrEnum):
    """How REF and HYP are read."""

    auto = "auto"
    kaldi = "kaldi"
    plain = "plain"


def command(
    ref: Annotated[Path, typer.Argument(metavar="REF", help="Reference transcripts.", show_default=False)],
    hyp: Annotated[Path, typer.Argument(metavar="HYP", help="Recognised texts.", show_default=False)],
    against: Annotated[
        Path | None, typer.Option(metavar="HYP2", help="Texts of another system, compared with HYP.")
    ] = None,
    normalize: Annotated[
        str, typer.Option(metavar="STEPS", help="Any of nfkc,lower,punct,phones48,phones39; in the order given.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    utt2spk: Annotated[Path | None, typer.Option(help="Speakers of utterances; default: utt2spk beside REF.")] = None,
    text_format: Annotated[
        Format, typer.Option("--format", help="Kaldi text, plain text, or detect which it is.")
    ] = Format.auto,
    details: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the full tables and alignments to this directory.")
    ] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Write HYP's error rates into MODEL/MODEL_CARD.md.")
    ] = None,
) -> None:
    """Compute word and character error rates with 95 % intervals.

    `speech3 score data/test/text exp/dnn/decode/hyp.txt`

    If there is a `hyp.ctm` beside `hyp.txt`, the normalised cross-entropy (NCE) of its confidences is printed. HYP may
    also be the lattices of `speech3 decode --lattice`: then the path with the fewest errors is scored in each (oracle):

    `speech3 score data/test/text exp/dnn/decode/lat.ark`

    REF and HYP are Kaldi text (`utterance words ...`) or plain text with one sentence per line. Texts are compared as
    they are unless you normalise them: `--normalize nfkc,lower,punct`. Utterances missing from HYP count as deletions.
    CER counts the characters of the words joined by single spaces, without a space next to a letter of a script that
    is written without spaces (Chinese, Japanese, Thai, ...).

    To compare two systems and test whether their difference is significant:

    `speech3 score data/test/text tri/hyp.txt --against dnn/hyp.txt`

    `--details DIR` writes all tables (`per_utt`, `per_speaker`, `confusions`, `alignments`). `--card exp/dnn` writes
    the error rates into the model card of the model that made HYP, for its users.
    """
    from speech3.corpus.normalize import parse_steps
    from speech3.errors import Speech3Error
    from speech3.scoring import tables
    from speech3.scoring.confidence import confidence_lines, reliability_beside
    from speech3.scoring.text import find_speakers, read_texts
    from speech3.scoring.wer import paired_test, score

    steps = parse_steps(normalize)
    paths = [ref, hyp, *([against] if against else [])]
    if any(path.suffix == ".ark" for path in paths[1:]):
        from speech3.scoring.oracle import oracle_texts

        if steps:
            raise Speech3Error(
                "--normalize: cannot be used with lattices; normalise REF so that its words are those of the lattice"
            )
        if text_format is Format.plain:
            raise Speech3Error("--format plain: lattices have utterance ids; give the reference as Kaldi text")
        others = [path for path in paths[1:] if path.suffix != ".ark"]
        (reference, *plain), reading = read_texts([ref, *others], Format.kaldi.value)
        read = dict(zip(others, plain, strict=True))
        texts = [reference, *(read.get(path) or oracle_texts(path, reference) for path in paths[1:])]
    else:
        texts, reading = read_texts(paths, text_format.value)
    speakers, speaker_note = find_speakers(ref, texts[0], reading, utt2spk)
    scores = [score(texts[0], text, speakers, steps) for text in texts[1:]]
    reliability = reliability_beside(scores[0], hyp)
    paired = paired_test(scores[0], scores[1]) if against else None
    if details:
        tables.write_details(details, scores[0])
    if card:
        from speech3.reports.scores_in_card import write_scores  # loads PyTorch

        write_scores(card, str(ref.parent), scores[0])
    warnings = [line for path, one in zip(paths[1:], scores, strict=True) for line in tables.warnings(one, str(path))]
    if as_json:
        print("".join(f"warning: {line}\n" for line in warnings), end="", file=sys.stderr)
        values = _as_json(scores, paired) | (
            {"nce": reliability.nce} if reliability and reliability.nce == reliability.nce else {}
        )
        print(json.dumps(values, indent=1, ensure_ascii=False))
        return
    kind = {"kaldi": "Kaldi text: an utterance id and its words", "plain": "plain text: one sentence per line"}[reading]
    print(f"read as     {kind}" + (" (detected; set it with --format)" if text_format is Format.auto else ""))
    print(f"normalised  {', '.join(steps) or 'nothing'}\nspeakers    {speaker_note}\n")
    print(tables.full(scores[0]))
    if reliability:
        print(f"\n{confidence_lines(reliability)}")
    if paired:
        print(f"\nagainst {against}\n{tables.summary(scores[1])}\n")
        print(tables.paired_test_lines(paired, str(hyp), str(against)))
    print("".join(f"\nwarning: {line}" for line in warnings))
    if details:
        print(f"tables in {details}")


def _as_json(scores: "list[Score]", paired: "PairedTest | None") -> dict[str, Any]:
    values = scores[0].as_json()
    if paired:
        values["against"] = {**scores[1].as_json(), **paired.as_json()}
    return values
