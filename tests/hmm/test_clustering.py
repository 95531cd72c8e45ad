"""Decision trees recover the contexts that data were drawn from."""

import numpy as np
import pytest

from speech3.errors import MissingError, Speech3Error
from speech3.hmm.clustering import (
    ContextStats,
    build_tree,
    log_likelihood,
    merge_questions,
    merge_stats,
    phone_groups,
    phone_sets,
    read_phone_sets,
)
from speech3.hmm.model import THREE_STATES, monophone_tree
from speech3.language.lexicon import Lexicon, Pronunciation, mark_positions

STATES = THREE_STATES.states
PHONES = "p t k a e o"


@pytest.fixture
def lexicon() -> Lexicon:
    return Lexicon((Pronunciation("all", tuple(PHONES.split())),))


def gaussian_stats(rng: np.random.Generator, mean: np.ndarray, count: int) -> np.ndarray:
    x = mean + rng.standard_normal((count, len(mean)))
    return np.concatenate([[count], x.sum(0), (x * x).sum(0)])


def drawn_contexts(lexicon: Lexicon, seed: int = 0) -> ContextStats:
    """`a` sounds different after p, t, k than after vowels and silence; the other phones ignore their neighbours."""
    rng = np.random.default_rng(seed)
    ids = lexicon.phone_ids
    plosives = {ids[p] for p in "ptk"}
    base = {p: rng.standard_normal(4) * 2 + (6 if p in plosives else -6) for p in ids.values()}
    context, stats = [], []
    for phone in ids.values():
        for left in (0, *ids.values()):
            for right in (0, *ids.values()):
                for state in range(STATES):
                    mean = base[phone] + (3.0 if phone == ids["a"] and left in plosives and state == 0 else 0.0)
                    context.append((left, phone, right, state))
                    stats.append(gaussian_stats(rng, mean, 20))
    return ContextStats(np.array(context, np.int32), np.array(stats))


def test_log_likelihood_equals_the_sum_over_frames() -> None:
    x = np.random.default_rng(0).standard_normal((200, 3)) * [1, 2, 3] + 5
    stats = np.concatenate([[200], x.sum(0), (x * x).sum(0)])
    mean, var = x.mean(0), x.var(0)
    expected = (-0.5 * (np.log(2 * np.pi * var) + (x - mean) ** 2 / var)).sum()
    assert float(log_likelihood(stats)) == pytest.approx(expected)
    assert float(log_likelihood(np.zeros(7))) == 0.0


def test_like_phones_are_asked_for_together(lexicon: Lexicon) -> None:
    data = drawn_contexts(lexicon)
    table = np.zeros((len(lexicon.phones) + 1, data.stats.shape[1]))
    np.add.at(table, data.context[:, 1], data.stats)
    questions = merge_questions(table, [(lexicon.phone_ids[p],) for p in PHONES.split()])
    sets = {frozenset(np.flatnonzero(row)) for row in questions}
    assert frozenset(lexicon.phone_ids[p] for p in "ptk") in sets
    assert frozenset(lexicon.phone_ids[p] for p in PHONES.split()) in sets
    assert all(sets) and 0 not in set().union(*sets)


def test_the_first_split_is_the_context_that_matters(lexicon: Lexicon) -> None:
    roots = len(lexicon.phones) * STATES
    tree = build_tree(drawn_contexts(lexicon), lexicon, leaves=roots + 1, min_frames=50)
    assert tree.num_pdfs == roots + 1
    ids = lexicon.phone_ids
    after_plosive = {tree.pdf(ids[p], ids["a"], ids["o"], 0) for p in "ptk"}
    after_others = {tree.pdf(left, ids["a"], ids["o"], 0) for left in (0, ids["SIL"], ids["a"], ids["e"], ids["o"])}
    assert len(after_plosive) == len(after_others) == 1 and after_plosive != after_others
    assert tree.pdf(ids["p"], ids["a"], 0, 1) == tree.pdf(ids["e"], ids["a"], 0, 1)


def test_silence_is_never_split_and_leaves_are_numbered_without_gaps(lexicon: Lexicon) -> None:
    tree = build_tree(drawn_contexts(lexicon), lexicon, leaves=60, min_frames=20)
    assert tree.num_pdfs <= 60
    sil, phones = lexicon.silence, range(len(lexicon.phones) + 1)
    assert len({tree.pdf(left, sil, right, 1) for left in phones for right in phones}) == 1
    reached = {tree.pdf(x, p, y, s) for x in phones for p in phones[1:] for y in phones for s in range(STATES)}
    assert reached <= set(range(tree.num_pdfs)) and len(set(tree.yes[tree.side < 0].tolist())) == tree.num_pdfs


def test_min_frames_limits_splitting(lexicon: Lexicon) -> None:
    roots = len(lexicon.phones) * STATES
    assert build_tree(drawn_contexts(lexicon), lexicon, leaves=500, min_frames=1e9).num_pdfs == roots


def test_too_few_leaves_is_an_error(lexicon: Lexicon) -> None:
    with pytest.raises(Speech3Error, match=r"hmm\.tri\.leaves=5.*at least 21"):
        build_tree(drawn_contexts(lexicon), lexicon, leaves=5, min_frames=10)


def test_stress_and_tone_variants_share_a_root() -> None:
    lexicon = Lexicon((Pronunciation("x", ("AH0", "AH1", "B", "AH2", "ma1", "1")),))
    groups = {frozenset(lexicon.phones[p - 1] for p in group) for group in phone_groups(lexicon)}
    assert groups == {frozenset(g) for g in (["SIL"], ["AH0", "AH1", "AH2"], ["B"], ["ma1"], ["1"])}


def test_tone_and_length_variants_of_a_letter_share_a_root() -> None:
    lexicon = mark_positions(Lexicon((Pronunciation("x", ("a", "á", "á꞉", "e³", "ẽ", "aː")),)))
    groups = {frozenset(lexicon.phones[p - 1] for p in group) for group in phone_groups(lexicon)}
    assert groups == {frozenset(g) for g in (["SIL"], ["a_B", "á_I", "á꞉_I"], ["e³_I"], ["ẽ_I"], ["aː_E"])}
    ids = lexicon.phone_ids
    asked = phone_sets(lexicon)  # the tree may ask for the tone, whatever the length
    assert frozenset([ids["á_I"], ids["á꞉_I"]]) in asked and frozenset([ids["á꞉_I"]]) in asked
    assert frozenset([ids["e³_I"]]) in asked


def test_merging_adds_equal_contexts() -> None:
    a = ContextStats(np.array([[1, 2, 3, 0], [0, 1, 2, 1]]), np.array([[1.0, 2, 3], [4, 5, 6]]))
    merged = merge_stats([a, ContextStats(np.array([[1, 2, 3, 0]]), np.array([[10.0, 20, 30]]))])
    assert merged.context.tolist() == [[0, 1, 2, 1], [1, 2, 3, 0]]
    assert merged.stats.tolist() == [[4, 5, 6], [11, 22, 33]]


def test_monophone_tree_ignores_context() -> None:
    tree = monophone_tree(np.arange(4))
    assert tree.num_pdfs == 12
    assert tree.pdf(0, 3, 1, 2) == tree.pdf(4, 3, 4, 2) == 8


def test_extra_questions_are_sets_of_phones(lexicon: Lexicon, tmp_path) -> None:
    path = tmp_path / "extra_questions.txt"
    path.write_text("p t k\n\na\n")
    ids = lexicon.phone_ids
    assert read_phone_sets(path, lexicon) == [frozenset(ids[p] for p in "ptk"), frozenset([ids["a"]])]
    path.write_text("p t\nk ZH\n")
    with pytest.raises(MissingError, match=r"extra_questions\.txt:2"):
        read_phone_sets(path, lexicon)
    path.unlink()
    with pytest.raises(Speech3Error, match=r"no such file; set hmm\.extra_questions"):
        read_phone_sets(path, lexicon)


def groups_of(*phones: str) -> set[frozenset[str]]:
    lexicon = mark_positions(Lexicon((Pronunciation("x", ("B", *phones, "B")),)))
    return {frozenset(lexicon.base_phone(lexicon.phones[p - 1]) for p in group) for group in phone_groups(lexicon)} - {
        frozenset(["SIL"]),
        frozenset(["B"]),
    }


@pytest.mark.parametrize(
    ("phones", "expected"),
    [
        (("e:", "e:6", "2", "9", "6", "@", "@6", "o:6"), ["e:", "e:6", "2", "9", "6", "@", "@6", "o:6"]),  # SAMPA
        (("AA0", "AA1", "EH1", "EH2", "IY1"), ["AA0 AA1", "EH1 EH2", "IY1"]),
        (("a", "a1", "a4", "ue4", "er", "er2"), ["a a1 a4", "ue4", "er", "er2"]),
        (("p1", "p2", "p10"), ["p1", "p2", "p10"]),  # numbered phones
    ],
)
def test_a_digit_is_stress_or_tone_where_the_phone_set_shows_it(phones: tuple[str, ...], expected: list[str]) -> None:
    assert groups_of(*phones) == {frozenset(group.split()) for group in expected}


def test_questions_about_a_digit_ask_for_stress_or_tone_only() -> None:
    lexicon = Lexicon((Pronunciation("x", ("e:", "e:6", "@6", "6")),))
    assert phone_sets(lexicon) == []
    lexicon = Lexicon((Pronunciation("x", ("AA0", "AA1", "EH1")),))
    ids = lexicon.phone_ids
    assert set(phone_sets(lexicon)) == {frozenset([ids["AA0"]]), frozenset([ids["AA1"], ids["EH1"]])}


def test_noises_have_no_contexts() -> None:
    prons = (Pronunciation("x", ("p", "a", "t", "a", "k")), Pronunciation("[n]", ("NSN",)))
    for noises, contexts in ((("NSN",), 1), (("SPN",), 2)):
        lexicon = Lexicon(prons, noise_phones=noises)
        data = drawn_contexts(lexicon)
        noise = lexicon.phone_ids["NSN"]
        depends = np.isin(data.context[:, 1], [noise]) & (data.context[:, 0] == lexicon.phone_ids["p"])
        data.stats[depends, 1:5] += 90.0  # it sounds different after a p
        tree = build_tree(data, lexicon, leaves=20, min_frames=1)
        assert len({tree.pdfs(left, noise, 0) for left in (0, *lexicon.phone_ids.values())}) == contexts
