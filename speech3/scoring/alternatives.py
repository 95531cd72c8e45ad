"""References that allow several texts, scored as NIST's sclite -D does: alternatives, no word, optional words.

    i've { um / uh / @ } as far as (i'm) concerned

Of the texts that the reference allows, the one nearest to the hypothesis is scored. sclite's costs are 4 for a
substitution, 3 for a deletion or insertion, 2 for an optional word that is left out, which then counts as correct.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise, product

from speech3.errors import Speech3Error
from speech3.scoring.formats import Line

_MOST = 1024  # texts of one utterance
_SUBSTITUTED, _WRONG, _LEFT_OUT = 4, 3, 2
Token = tuple[str, bool]  # a word, and whether it is optional
Allowed = list[list[Token]]  # the texts that a reference allows


def allowed(line: Line) -> Allowed:
    """All texts that a reference allows.

    Raises
    ------
    Speech3Error
        Braces are not balanced, alternatives are not set apart by spaces, or there are too many texts.
    """
    fields = re.sub(r"([{}])", r" \1 ", line.text).split()
    found, end = _sequence(fields, 0, line, depth=0)
    assert end == len(fields)
    return found


def is_simple(text: str) -> bool:
    """Does a text allow only itself?"""
    return not re.search(r"[{}]|(?:^|\s)(?:@|\(\S+\))(?=\s|$)", text)


def _sequence(fields: list[str], place: int, line: Line, depth: int) -> tuple[Allowed, int]:
    """The texts from a place to the end of the line, or of an alternative, and the place after them."""
    parts: list[Allowed] = []
    while place < len(fields):
        field = fields[place]
        if depth and field in ("/", "}"):
            break
        place += 1
        if field == "{":
            choices, place = _choices(fields, place, line, depth)
            parts.append(choices)
        elif field == "}":
            raise Speech3Error(f"{line.where}: a closing brace without an opening one; correct the alternatives")
        elif depth and "/" in field:
            raise Speech3Error(f"{line.where}: `{field}` in alternatives: write spaces around /, as in {{ um / uh }}")
        elif field != "@":
            optional = field.startswith("(") and field.endswith(")") and len(field) > 2
            parts.append([[(field[1:-1], True) if optional else (field, False)]])
        total = 1
        for part in parts:
            total *= len(part)
        if total > _MOST:
            raise Speech3Error(f"{line.where}: alternatives allow more than {_MOST:,} texts; split the utterance")
    return [[token for part in chosen for token in part] for chosen in product(*parts)], place


def _choices(fields: list[str], place: int, line: Line, depth: int) -> tuple[Allowed, int]:
    choices: Allowed = []
    while True:
        found, place = _sequence(fields, place, line, depth + 1)
        choices += found
        if place == len(fields):
            raise Speech3Error(f"{line.where}: alternatives without a closing brace; add it")
        place += 1
        if fields[place - 1] == "}":
            return choices, place


def resolve(
    references: Mapping[str, Line], hypothesis: Mapping[str, str], normalize: Callable[[str], str] = str
) -> tuple[dict[str, str], dict[str, str]]:
    """The texts to be compared: of each reference the nearest text, and the hypothesis.

    Optional words that were left out are in both, since they count as correct.

    Parameters
    ----------
    normalize
        Is applied to words before they are compared here, and stays in what is returned.

    Raises
    ------
    Speech3Error
        As `allowed`.
    """
    chosen, heard = {}, dict(hypothesis)
    for name, line in references.items():
        if is_simple(line.text):
            chosen[name] = line.text
            continue
        hyp = normalize(hypothesis.get(name, "")).split()
        texts = [
            [(part, optional) for word, optional in text for part in normalize(word).split()] for text in allowed(line)
        ]
        aligned = [_align(text, hyp) for text in texts]
        best = min(range(len(texts)), key=lambda number: aligned[number][0])
        chosen[name] = " ".join(word for word, _ in texts[best])
        if name in hypothesis:
            heard[name] = " ".join(aligned[best][1])
    return chosen, heard


def _align(ref: list[Token], hyp: list[str]) -> tuple[int, list[str]]:
    """The cost of the cheapest alignment, and the hypothesis with the optional words that it left out."""
    row = [_WRONG * count for count in range(len(hyp) + 1)]
    rows = [row]
    for word, optional in ref:
        without = _LEFT_OUT if optional else _WRONG
        now = [row[0] + without]
        for place, (before, above) in enumerate(pairwise(row)):
            same = before + (0 if word == hyp[place] else _SUBSTITUTED)
            now.append(min(same, above + without, now[place] + _WRONG))
        rows.append(row := now)
    heard: list[str] = []
    i, j = len(ref), len(hyp)
    while i or j:
        word, optional = ref[i - 1] if i else ("", False)
        if i and j and rows[i][j] == rows[i - 1][j - 1] + (0 if word == hyp[j - 1] else _SUBSTITUTED):
            i, j = i - 1, j - 1
            heard.append(hyp[j])
        elif i and rows[i][j] == rows[i - 1][j] + (_LEFT_OUT if optional else _WRONG):
            i -= 1
            heard += [word] * optional
        else:
            j -= 1
            heard.append(hyp[j])
    return rows[-1][-1], heard[::-1]
