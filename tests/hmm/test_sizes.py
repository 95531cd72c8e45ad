"""Sizes of the bootstrap's models where a recipe leaves them open."""

from speech3.config import HmmConfig, MonophoneConfig, TriphoneConfig
from speech3.hmm.clustering import phone_groups
from speech3.hmm.train import lfmmi_passes, with_sizes
from speech3.language.lexicon import Lexicon, Pronunciation, mark_positions

OPEN = HmmConfig(
    mono=MonophoneConfig(gaussians=0), aligner=MonophoneConfig(gaussians=0), tri=TriphoneConfig(leaves=0, gaussians=0)
)


def test_places_in_the_word_and_stress_share_roots_and_ask_for_no_more_leaves() -> None:
    prons = [Pronunciation(f"w{n}{m}", (f"p{chr(97 + n)}", f"E{m}", "t")) for n in range(26) for m in range(3)]
    plain = Lexicon(tuple(Pronunciation(pron.word, (pron.phones[0], "E", "t")) for pron in prons))
    marked = mark_positions(Lexicon(tuple(prons)))
    assert len(marked.phones) > len(plain.phones)
    by_marked, by_plain = (with_sizes(OPEN, 0.25, len(phone_groups(lexicon))) for lexicon in (marked, plain))
    assert by_marked == by_plain
    assert 0 < by_plain.tri.leaves < by_plain.tri.gaussians


def test_more_speech_gives_larger_models_and_what_is_given_stays() -> None:
    given = OPEN.model_copy(update={"tri": TriphoneConfig(leaves=77, gaussians=0)})
    small, large = with_sizes(given, 0.25, 20), with_sizes(given, 100.0, 20)
    assert small.tri.leaves == large.tri.leaves == 77
    assert small.tri.gaussians < large.tri.gaussians
    assert small.mono.gaussians < large.mono.gaussians


def test_passes_of_lfmmi_fall_with_the_amount_of_speech():
    assert [lfmmi_passes(hours) for hours in (1 / 60, 1 / 6, 1.0, 2.0, 100.0, 10_000.0)] == [50, 50, 50, 40, 5, 4]
