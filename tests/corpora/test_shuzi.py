"""Mandarin numbers: spelled so that they can be read back, and spoken by espeak as the lexicon says, tones included."""

import ctypes
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from speech3.corpora import shuzi, synthetic
from speech3.data.datadir import read_datadir
from speech3.data.validation import validate
from speech3.errors import MachineError
from speech3.hmm.clustering import phone_groups
from speech3.language import espeak
from speech3.language.lexicon import read_lexicon
from speech3.runtime import parallel

pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")

SIZES = {"train": 34, "dev": 6, "test": 22}
TONES = {"1": "55", "2": "35", "3": "214", "4": "51"}  # pinyin, and the pitches by which espeak names a tone
# espeak's mnemonics of the finals (its IPA does not tell the first tone from the fourth); the tone stands at the star.
FINALS = {
    "ing": "i*N", "i": "i*", "er": "@r*", "an": "a*n", "iy": "i[*", "u": "u*", "iu": "iou*", "a": "A*", "ix": "i.*",
    "ai": "ai*", "ian": "iE*n", "uan": "A*n", "iang": "iA*N", "iao": "Au*", "en": "@*n", "ve": "yE*", "ao": "Au*",
    "e": "o-*", "ang": "A*N", "ia": "iA*", "uai": "uai*", "van": "y&*n",
}  # fmt: skip
INITIALS = {
    "ii": "j", "uu": "w", "vv": "j", "ee": "", "b": "p", "d": "t", "f": "f", "h": "X", "j": "tS;", "k": "kh", "l": "l",
    "m": "m", "n": "n", "q": "tS;h", "r": "z.", "s": "s", "sh": "s.", "x": "S;", "zh": "ts.",
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shuzi") / "corpus"
    shuzi.prepare(None, out, 5, jobs=1, **SIZES)
    return out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "零"), (2, "二"), (10, "十"), (12, "十二"), (20, "二十"), (101, "一百零一"), (110, "一百一十"),
        (123, "一百二十三"), (200, "两百"), (222, "两百二十二"), (1010, "一千零一十"), (3005, "三千零五"),
        (20000, "两万"), (22222, "两万两千两百二十二"), (100000, "十万"), (120000, "十二万"), (20002, "两万零二"),
        (1120000, "一百一十二万"), (305000, "三十万五千"), (10203004, "一千零二十万三千零四"), (200000000, "两亿"),
        (100000005, "一亿零五"), (100005000, "一亿零五千"), (1000010000, "十亿零一万"), (1000000010, "十亿零一十"),
    ],
)  # fmt: skip
def test_numbers_spelled_by_hand(value: int, text: str) -> None:
    assert shuzi.spell_number(value) == text


def test_two_before_hundred_and_out_of_range() -> None:
    assert shuzi.spell_number(2200, liang=False) == "两千二百"
    assert shuzi.spell_digits("2101") == "二一零一"
    assert shuzi.spell_digits("2101", yao=True) == "二幺零幺"
    with pytest.raises(ValueError, match="outside"):
        shuzi.spell_number(10**12)


def value_of(text: str) -> int:
    """Read a number as a listener does: each unit multiplies what was said since the last one."""
    total = section = digit = 0
    for character in text:
        if character in "零一二三四五六七八九":
            digit = "零一二三四五六七八九".index(character)
        elif character == "两":
            digit = 2
        elif character in "十百千":
            section += max(digit, 1 if character == "十" else 0) * {"十": 10, "百": 100, "千": 1000}[character]
            digit = 0
        else:
            total += (section + digit) * {"万": 10**4, "亿": 10**8}[character]
            section = digit = 0
    return total + section + digit


def test_numbers_can_be_read_back_and_are_unique() -> None:
    rng = np.random.default_rng(3)
    values = {int(10 ** rng.uniform(0, 12)) // 10**k * 10**k for k in range(9) for _ in range(300)} | set(range(2000))
    for value in values:
        for liang in (True, False):
            text = shuzi.spell_number(value, liang)
            assert value_of(text) == value, text
            assert value == 0 or not re.search("零零|零$|^零|零[十百千万亿]", text), text
    assert len({shuzi.spell_number(value) for value in values}) == len(values)


def test_what_is_drawn_covers_the_lexicon() -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(shuzi.draw(rng)) for _ in range(2000)]
    assert {character for text in texts for character in text} == set(synthetic.read_lexicon("shuzi"))
    assert 6 < np.mean([len(text) for text in texts]) < 10
    kinds = ["^零$", "^[零一二三四五六七八九]{8}", "幺[三四五六七八九]", "年十二月", "[上下]午两点", "点半$", "三刻"]
    for kind in [*kinds, "分之", "^第", "^零点", "块.毛", "元", "^负", "百分之百?", "亿零"]:
        assert any(re.search(kind, text) for text in texts), kind


def spoken(text: str) -> str:
    """espeak's mnemonics of a text, which bear the tones."""
    said = ""
    with espeak._fresh_library() as (library, _):
        espeak._set_voice(library, "cmn")
        library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        buffer = ctypes.create_string_buffer(text.encode())
        rest = ctypes.c_void_p(ctypes.addressof(buffer))
        while rest.value:
            said += (library.espeak_TextToPhonemes(ctypes.byref(rest), 1, 0) or b"").decode()
    return re.sub("[',_| ]", "", said)


def test_espeak_says_every_character_with_a_tone_of_the_lexicon() -> None:
    lexicon = {word: [(a, b[:-1], b[-1]) for a, b in prons] for word, prons in synthetic.read_lexicon("shuzi").items()}
    pattern = {}
    for character, variants in lexicon.items():
        assert len({variant[:2] for variant in variants}) == 1  # variants differ in the tone
        (initial, final, _), tones = variants[0], "|".join(TONES[tone] for *_, tone in variants)
        before, after = FINALS[final].split("*")
        pattern[character] = re.escape(INITIALS[initial] + before) + f"({tones})" + re.escape(after)
    rng, seen = np.random.default_rng(1), set()
    for text in [*lexicon, "一百", "一万", "二零二六年十一月二十一日", *("".join(shuzi.draw(rng)) for _ in range(200))]:
        match = re.fullmatch("".join(pattern[character] for character in text), said := spoken(text))
        assert match, (text, said)
        seen |= set(zip(text, match.groups(), strict=True))
    assert {("一", "55"), ("一", "51"), ("一", "35")} <= seen
    # A third tone before another becomes the second in the synthesis itself, not in the mnemonics.
    assert {tone for character, tone in seen if character in "五百九两点午"} == {"214"}


def test_one_name_for_one_sound() -> None:
    syllables, lexicon = shuzi.read_syllables(), synthetic.read_lexicon("shuzi")
    assert set(syllables) == set(lexicon)
    sounds: dict[str, set[tuple[str, ...]]] = {}
    for character, phones in syllables.items():
        initial, final = lexicon[character][0]
        cut = 0 if initial == "ee" else 1
        sounds.setdefault(initial, set()).add(tuple(phones[:cut]))
        sounds.setdefault(final[:-1], set()).add(tuple(phones[cut:]))
    assert all(len(different) == 1 for different in sounds.values()), sounds


def test_tones_of_a_final_share_a_root() -> None:
    lexicon = read_lexicon(synthetic.data_file("shuzi", "lexicon.txt"))
    groups = {frozenset(lexicon.phones[number - 1] for number in group) for group in phone_groups(lexicon)}
    assert {"i1", "i2", "i4"} in groups and {"u2", "u3", "u4"} in groups and {"ix1", "ix2", "ix4"} in groups


def test_data_directories_are_whole(corpus: Path) -> None:
    characters = set(synthetic.read_lexicon("shuzi"))
    for split, size in SIZES.items():
        data = read_datadir(corpus / split)
        assert len(data.utterances) == size
        assert not validate(corpus / split).faults
        assert set(data.speakers()) == {s.id for s in synthetic.read_speakers("shuzi") if s.split == split}
        assert all(set(str(utterance.text).split()) <= characters for utterance in data.utterances.values())
        conditions = dict(line.split() for line in (corpus / split / "conditions").read_text().splitlines())
        assert list(conditions) == list(data.utterances) and set(conditions.values()) <= set(synthetic.CONDITIONS)
        assert not (corpus / split / "reference.ctm").exists()


def test_same_bytes_with_more_processes(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)  # so little work would start no process
    shuzi.prepare(None, tmp_path, 5, jobs=2, **SIZES)
    first, second = (
        {
            str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in out.rglob("*")
            if path.is_file()
        }
        for out in (corpus, tmp_path)
    )
    assert first == second


def test_no_variant_is_in_two_splits() -> None:
    split: dict[str, str] = {}
    speakers = synthetic.read_speakers("shuzi")
    for speaker in speakers:
        assert speaker.voice.partition("+")[0] == "cmn"
        assert split.setdefault(speaker.voice, speaker.split) == speaker.split
    assert len({(s.voice, s.pitch) for s in speakers}) == len(speakers) >= 40


def test_another_pronunciation_is_an_error() -> None:
    synthesis = espeak.synthesize("三百零五", "cmn+m3")
    shuzi.check_pronunciation(synthesis, "三百零五", "u")
    with pytest.raises(MachineError, match="s17-003"):
        shuzi.check_pronunciation(synthesis, "三百一五", "s17-003")
