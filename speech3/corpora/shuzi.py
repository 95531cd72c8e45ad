"""The built-in Mandarin corpus: digits and numbers as people say them, synthesised by espeak-ng.

Cardinals with their zeros (三千零五), 两 as well as 二, digit strings, telephone numbers with 幺, dates, times of day,
decimals, percentages, fractions, ordinals, prices and negative numbers. A character is a word; its phones are the
initial and the final with the tone, named as in the lexicons of THCHS-30 and AISHELL (``ii``, ``uu``, ``vv`` and ``ee``
begin a syllable without an initial). Characters whose tone depends on the next one have a pronunciation for each tone:
一 (yi4 in 一百, yi2 in 一万) and a third tone before another (wu2 bai3: 五百); espeak-ng handles both. Speakers,
lexicon and espeak's names of the phones are files in ``data/shuzi``; rooms and noise are those of `synthetic`.
"""

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from speech3.corpora import synthetic
from speech3.corpora.synthetic import Speaker, Spoken
from speech3.errors import MachineError
from speech3.language import Synthesis

CORPUS = "shuzi"
DIGITS = "零一二三四五六七八九"
LARGEST = 10**9
MOST_DIGITS = 8
ANOTHER_PROBABILITY = 0.3  # that the utterance has a second item
PAUSE_PROBABILITY = 0.5  # of a pause between the parts of an item, such as month and day
Groups = list[str]  # parts of an item, between which a speaker may pause


def prepare(
    source: Path | None, out: Path, seed: int, *, jobs: int = 0, train: int = 1000, dev: int = 150, test: int = 300
) -> None:
    """Synthesise the corpus into ``out``; parameters and errors as for `digits.prepare`."""
    synthetic.prepare(CORPUS, _say, out, seed, {"train": train, "dev": dev, "test": test}, jobs)


def read_syllables() -> dict[str, list[str]]:
    """The names of espeak's phone events for each character."""
    rows = (line.split() for line in synthetic.data_lines(CORPUS, "syllables.txt"))
    return {character: phones for character, *phones in rows}


def spell_number(value: int, liang: bool = True) -> str:
    """Spell a whole number below 10**12 (else ValueError) in characters, as it is spoken.

    With `liang`, 两 replaces 二 before 百, too, as it always does before 千, 万 and 亿.
    """
    if not 0 <= value < 10**12:
        raise ValueError(f"{value} is outside 0 to 10**12 - 1")
    if value == 0:
        return "零"
    text, gap = "", False
    for unit, scale in (("亿", 10**8), ("万", 10**4), ("", 1)):
        part = value // scale % 10**4
        if part == 0:
            gap = bool(text)
            continue
        spelled = "两" if part == 2 and unit else _below_ten_thousand(part, liang, first=not text)
        # One 零 stands for all zeros between two spoken digits.
        text += ("零" if text and (gap or part < 1000) else "") + spelled + unit
        gap = False
    return text


def _below_ten_thousand(value: int, liang: bool, first: bool) -> str:
    text, gap = "", False
    for unit, scale in (("千", 1000), ("百", 100), ("十", 10), ("", 1)):
        digit = value // scale % 10
        if digit == 0:
            gap = bool(text)
            continue
        said = "两" if digit == 2 and (unit == "千" or (unit == "百" and liang)) else DIGITS[digit]
        said = "" if first and not text and (digit, unit) == (1, "十") else said  # 十二, but 一百一十二
        text += ("零" if gap else "") + said + unit
        gap = False
    return text


def spell_digits(digits: str, yao: bool = False) -> str:
    """Spell the digits one by one; with `yao`, 1 is 幺, as in telephone numbers."""
    spelled = "".join(DIGITS[int(digit)] for digit in digits)
    return spelled.replace("一", "幺") if yao else spelled


def draw(rng: np.random.Generator) -> Groups:
    kinds = list(_KINDS)
    shares = np.array([share for _, share in _KINDS.values()])
    groups: Groups = []
    for _ in range(1 + (rng.random() < ANOTHER_PROBABILITY)):
        groups += _KINDS[kinds[rng.choice(len(kinds), p=shares / shares.sum())]][0](rng)
    return groups


def _number(rng: np.random.Generator, most: float = LARGEST) -> int:
    """Draw a whole number: all lengths are equally frequent, and half of them are rounded down at a random place."""
    value = int(10 ** rng.uniform(0, np.log10(most)))
    return value // (scale := 10 ** int(rng.integers(len(str(value))))) * scale if rng.random() < 0.5 else value


def _cardinal(rng: np.random.Generator) -> Groups:
    spelled = spell_number(_number(rng) if rng.random() < 0.9 else 0, bool(rng.random() < 0.7))
    head, unit, tail = spelled.rpartition("万")
    return [part for part in (head + unit, tail) if part]


def _small(rng: np.random.Generator, most: int) -> str:
    return spell_number(int(rng.integers(1, most)))


def _count(value: int) -> str:
    return "两" if value == 2 else spell_number(value)


def _string(rng: np.random.Generator) -> Groups:
    return [spell_digits("".join(map(str, rng.integers(10, size=rng.integers(1, MOST_DIGITS + 1)))))]


def _telephone(rng: np.random.Generator) -> Groups:
    digits = f"1{rng.integers(3, 10)}" + "".join(map(str, rng.integers(10, size=9)))
    return [spell_digits(part, yao=True) for part in (digits[:3], digits[3:7], digits[7:])]


def _date(rng: np.random.Generator) -> Groups:
    drawn = date(1950, 1, 1) + timedelta(days=int(rng.integers(36525)))
    year = [spell_digits(str(drawn.year)) + "年"] if rng.random() < 0.6 else []
    day = "日" if rng.random() < 0.5 else "号"
    return [*year, spell_number(drawn.month) + "月", spell_number(drawn.day) + day]


def _time(rng: np.random.Generator) -> Groups:
    half, hour = [("上午", 12), ("下午", 12), ("", 24)][rng.integers(3)]
    clock = half + _count(int(rng.integers(1, hour + 1))) + "点"
    minute = int(rng.integers(60))
    if rng.random() < 0.3:
        return [clock + str(rng.choice(["半", "一刻", "三刻"]))]
    return [clock] if minute == 0 else [clock, ("零" if minute < 10 else "") + spell_number(minute) + "分"]


def _decimal(rng: np.random.Generator) -> Groups:
    whole = spell_number(_number(rng, 1000) if rng.random() < 0.7 else 0)
    return [whole + "点" + spell_digits("".join(map(str, rng.integers(10, size=rng.integers(1, 5)))))]


def _per_cent(rng: np.random.Generator) -> Groups:
    return ["百分之" + (_small(rng, 101) if rng.random() < 0.7 else _decimal(rng)[0])]


def _fraction(rng: np.random.Generator) -> Groups:
    return [_small(rng, 100) + "分之" + _small(rng, 30)]


def _ordinal(rng: np.random.Generator) -> Groups:
    return ["第" + spell_number(int(rng.integers(1, 1000)), liang=False)]


def _price(rng: np.random.Generator) -> Groups:
    if rng.random() < 0.5:
        return [spell_number(_number(rng, 100000)) + "元"]
    yuan = _small(rng, 100)
    return [
        ("两" if yuan == "二" else yuan) + "块" + (f"{DIGITS[rng.integers(1, 10)]}毛" if rng.random() < 0.6 else "")
    ]


def _negative(rng: np.random.Generator) -> Groups:
    return ["负" + (spell_number(_number(rng, 10000)) if rng.random() < 0.6 else _decimal(rng)[0])]


_KINDS: dict[str, tuple[Callable[[np.random.Generator], Groups], float]] = {
    "cardinal": (_cardinal, 0.26),
    "string": (_string, 0.14),
    "telephone": (_telephone, 0.08),
    "date": (_date, 0.12),
    "time": (_time, 0.12),
    "decimal": (_decimal, 0.08),
    "per cent": (_per_cent, 0.05),
    "fraction": (_fraction, 0.03),
    "ordinal": (_ordinal, 0.03),
    "price": (_price, 0.05),
    "negative": (_negative, 0.04),
}


def _say(key: str, speaker: Speaker, rng: np.random.Generator) -> Spoken:
    groups = draw(rng)
    synthesis, samples_N, _ = synthetic.speak(ssml(groups, rng), speaker, rng)
    text = "".join(groups)
    check_pronunciation(synthesis, text, key)
    return Spoken(samples_N, " ".join(text))


def ssml(groups: Groups, rng: np.random.Generator) -> str:
    """Join the parts of an utterance as SSML, with a pause between some of them."""
    text = groups[0]
    for group in groups[1:]:
        pause_ms = rng.integers(60, 500)
        text += (f'<break time="{pause_ms}ms"/>' if rng.random() < PAUSE_PROBABILITY else "") + group
    return text


def check_pronunciation(synthesis: Synthesis, text: str, key: str) -> None:
    """Raise an error if the synthesised phones are not those of the characters: is espeak's release not 1.52?"""
    syllables = read_syllables()
    expected = [phone for character in text for phone in syllables[character]]
    said = [event.ipa for event in synthesis.events if event.ipa]
    if said != expected:
        raise MachineError(
            f"{key}: espeak-ng pronounces {text} as {' '.join(said)}, not {' '.join(expected)}; "
            "this is not the release that speech3 supports"
        )
