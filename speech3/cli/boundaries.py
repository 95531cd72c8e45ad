"""`speech3 boundaries`: errors of the times of words and phones."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
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
    from speech3.errors import listed
    from speech3.evaluate import compare, level_in_name, read_times, table
    from speech3.hmm import Level as Kind
    from speech3.runtime import say

    tiers: dict[Kind, str] = {}
    if words_tier:
        tiers["words"] = words_tier
    if phones_tier:
        tiers["phones"] = phones_tier
    given: Kind | None = level.value if level else None
    reference = read_times(ref, given or level_in_name(hyp), tiers)
    hypothesis = read_times(hyp, given or level_in_name(ref), tiers)
    found = compare(reference, hypothesis)
    if found.missing:
        say(f"warning: {len(found.missing)} utterances are not in {hyp}, such as {listed(found.missing)}")
    if as_json:
        print(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
        return
    print(f"reference    {ref} ({reference.kind})\nhypothesis   {hyp} ({hypothesis.kind})\n")
    print(table(found))
