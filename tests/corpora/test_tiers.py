"""TextGrid and ELAN files: what is read from them, and which tier holds the transcript."""

import codecs
import math
from pathlib import Path

import pytest
from fieldwork import aligned, eaf, long_textgrid, referring, short_textgrid, tier

from speech3.corpora.tiers import Annotation, Tier, choose, read_elan, read_textgrid
from speech3.errors import MissingError, Speech3Error
from speech3.hmm.alignment.times import Segment, write_textgrid

TIERS = {
    "words": [(0.0, 0.5, ""), (0.5, 1.25, 'says "hi!" 12 [x]: <y>'), (1.25, 2.0, "Ẹ kú\nilé")],
    "phones": [(0.0, 2.0, "= 3 =")],
}


@pytest.mark.parametrize("layout", [short_textgrid, long_textgrid])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_textgrids_of_both_layouts_and_all_encodings(tmp_path: Path, layout, encoding: str) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    path = tmp_path / "a.TextGrid"
    path.write_bytes(mark + layout(TIERS).replace("\n", "\r\n").encode(encoding))
    found = read_textgrid(path)
    assert {t.name: [(a.start_s, a.end_s, a.text.replace("\r", "")) for a in t.annotations] for t in found} == TIERS


def test_our_own_textgrids_are_read(tmp_path: Path) -> None:
    write_textgrid(tmp_path / "a.TextGrid", {"words": [Segment(0.5, 1.0, 'a "b"')], "empty": []}, 2.0)
    words, empty = read_textgrid(tmp_path / "a.TextGrid")
    assert words.annotations[1] == Annotation(0.5, 1.0, 'a "b"') and len(words.annotations) == 3
    assert [a.text for a in empty.annotations] == [""]


def test_textgrids_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.TextGrid"
    whole = short_textgrid(TIERS)
    for content, match in (
        (b"ooBinaryFile\x08TextGrid", "binary file of Praat.*; open it in Praat"),
        (b"hello", "is not a complete TextGrid"),
        (whole.replace('"TextGrid"', '"PitchTier"').encode(), "not a TextGrid in a text format"),
        (whole[:-40].encode(), "not a complete TextGrid"),
        (b"", "not a complete TextGrid"),
        (whole.replace("IntervalTier", "Tier").encode(), "not a complete TextGrid"),
        (whole.replace("<exists>\n", "<exists>\n1e999 ").encode(), "not a complete TextGrid"),
        (short_textgrid({"é": []}).encode("latin-1"), "not UTF-8 text"),
    ):
        path.write_bytes(content)
        with pytest.raises(Speech3Error, match=match):
            read_textgrid(path)
    with pytest.raises(Speech3Error, match="no such file"):
        read_textgrid(tmp_path / "none.TextGrid")


def test_elan_times_come_from_the_parent(tmp_path: Path) -> None:
    """ref (aligned) > utterance (one each) > words (several each, stored in any order) > glosses of words."""
    path = tmp_path / "a.eaf"
    path.write_text(
        eaf(
            {"ts1": 100, "ts2": 1000, "ts3": 1000, "ts4": 2500},
            tier("ref@K", aligned("a1", "ts1", "ts2", "1"), aligned("a2", "ts3", "ts4", "2"), participant="Kofi"),
            tier("tx@K", referring("b1", "a1", "nne &lt;x> leo"), referring("b2", "a2", "tano"), parent="ref@K"),
            tier(
                "word@K",
                referring("c2", "b1", "leo", "c1"),
                referring("c1", "b1", "nne"),
                referring("c3", "b2", "tano"),
            ),
            tier(
                "gloss@K",
                referring("d2", "c2", "today"),
                referring("d1", "c1", "four"),
                referring("d3", "c3", "five"),
            ),
        ),
        encoding="utf-8",
    )
    found = {t.name: [(a.start_s, a.end_s, a.text) for a in t.annotations] for t in read_elan(path)}
    assert found == {
        "ref@K": [(0.1, 1.0, "1"), (1.0, 2.5, "2")],
        "tx@K": [(0.1, 1.0, "nne <x> leo"), (1.0, 2.5, "tano")],
        "word@K": [(0.1, 1.0, "nne leo"), (1.0, 2.5, "tano")],
        "gloss@K": [(0.1, 1.0, "four today"), (1.0, 2.5, "five")],
    }
    ref, tx, *_ = read_elan(path)
    assert (ref.speaker, ref.participant, ref.type, tx.speaker, tx.kind) == ("Kofi", "Kofi", "default-lt", "K", "tx")


def test_elan_boundaries_that_were_never_set(tmp_path: Path) -> None:
    """Annotations that share slots without a time are one; those without any time have NaN; a circle ends."""
    path = tmp_path / "a.eaf"
    path.write_text(
        eaf(
            {"t1": 0, "t2": None, "t3": None, "t4": 900, "t5": 1000, "t6": 2000, "t7": None},
            tier(
                "words",
                aligned("a2", "t2", "t3", "b"),
                aligned("a1", "t1", "t2", "a"),
                aligned("a3", "t3", "t4", "c"),
                aligned("a4", "t5", "t6", "d"),
                aligned("a5", "t7", "t7", "e"),
            ),
            tier("lost", referring("r1", "nobody", "x")),
            tier("circle", referring("c1", "c2", "x", "c2"), referring("c2", "c1", "y", "c1")),
        )
    )
    words, lost, circle = read_elan(path)
    assert [(a.start_s, a.end_s, a.text) for a in words.annotations[:2]] == [(0, 0.9, "a b c"), (1, 2, "d")]
    for annotation in (words.annotations[2], *lost.annotations, *circle.annotations):
        assert math.isnan(annotation.start_s) and annotation.text


def test_elan_counts_from_the_origin_of_the_recording(tmp_path: Path) -> None:
    content = eaf({"t1": 100, "t2": 900}, tier("words", aligned("a1", "t1", "t2", "a")))
    path = tmp_path / "a.eaf"

    def with_media(*media: tuple[str, str]) -> None:
        described = "".join(
            f'<MEDIA_DESCRIPTOR MEDIA_URL="file:///C:/field/{name}" MIME_TYPE="audio/x-wav"{origin}/>'
            for name, origin in media
        )
        path.write_text(content.replace("<TIME_ORDER>", f"<HEADER>{described}</HEADER><TIME_ORDER>"))

    for media, start_s in (
        ([("a.wav", "")], 0.1),
        ([("b.wav", ' TIME_ORIGIN="1500"')], 1.6),
        ([("film.mp4", ' TIME_ORIGIN="1500"'), ("a.wav", ' TIME_ORIGIN="2000"')], 2.1),
        ([("film.mp4", ""), ("a.wav", ' TIME_ORIGIN="-50"')], 0.05),
    ):
        with_media(*media)
        (words,) = read_elan(path)
        assert [(a.start_s, a.end_s) for a in words.annotations] == [pytest.approx((start_s, start_s + 0.8))]
    with_media(("film.mp4", ' TIME_ORIGIN="1500"'), ("b.wav", ""))
    with pytest.raises(Speech3Error, match=r"a\.eaf: .*0, 1500 ms.*none of them is called a"):
        read_elan(path)


def test_elan_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.eaf"
    for content, match in ((b"<a><b></a>", "is not XML"), (b"", "is not XML"), (b"<svg/>", "its root is svg")):
        path.write_bytes(content)
        with pytest.raises(Speech3Error, match=match):
            read_elan(path)


@pytest.mark.parametrize(
    ("named", "participant", "of_type", "speaker", "kind"),
    [
        ("ref@SP", "", "refT", "SP", "ref"),
        ("A_Transcription-txt-sw", "", "", "A", "Transcription-txt-sw"),
        ("Anna Bell - words", "", "", "Anna Bell", "words"),
        ("Kofi", "Kofi", "default-lt", "Kofi", "default-lt"),
        ("Kofi_tx", "Kofi", "", "Kofi", "tx"),
        ("tx@A", "Ama", "", "Ama", "tx"),
        ("word_txt", "", "", "", "word_txt"),
        ("IPA_transcription", "", "", "", "IPA_transcription"),
        ("sentence", "", "", "", "sentence"),
    ],
)
def test_speaker_and_kind_of_a_tier(named: str, participant: str, of_type: str, speaker: str, kind: str) -> None:
    found = Tier(named, (), participant, of_type)
    assert (found.speaker, found.kind) == (speaker, kind)


def spoken(name: str, text: str = "a", of_type: str = "") -> Tier:
    return Tier(name, (Annotation(0, 1, text), Annotation(1, 2, text)), "", of_type)


def test_the_tier_is_chosen_or_asked_for() -> None:
    here = Path("corpus")
    files = {"1": [spoken("tx@A"), spoken("tx@B"), Tier("notes", ())], "2": [spoken("TX@C")]}
    assert {file: [t.name for t in tiers] for file, tiers in choose(files, None, here).items()} == {
        "1": ["tx@A", "tx@B"],
        "2": ["TX@C"],
    }
    files["3"] = [
        spoken("gloss x", "a word that is much too long to be shown as an example"),
        spoken("Ben", of_type="lt"),
    ]
    with pytest.raises(Speech3Error) as caught:
        choose(files, None, here)
    assert str(caught.value).splitlines() == [  # most files first, then most annotations
        "corpus: several tiers could hold the transcript; name one, as in tier=tx (several: tier=NAME,NAME; all, each"
        " of one speaker: tier='*'; option --tier, except in recipes):",
        "  tier=tx: in 2 of 3 files, 6 annotations, such as 'a'",
        "  tier=Ben: in 1 of 3 files, 2 annotations, such as 'a'",
        "  tier='gloss x': in 1 of 3 files, 2 annotations, such as 'a word that is much too long to be shown...'",
        "  tier=notes: in 1 of 3 files, 0 annotations",
    ]

    def chosen(wanted: str) -> list[str]:
        return [t.name for tiers in choose(files, wanted, here).values() for t in tiers]

    assert chosen("tx") == ["tx@A", "tx@B", "TX@C"] and chosen("TX@a") == ["tx@A"] and chosen("lt") == ["Ben"]
    assert chosen("tx@A, Ben") == ["tx@A", "Ben"]
    with pytest.raises(MissingError, match="tier=words"):
        chosen("words")
