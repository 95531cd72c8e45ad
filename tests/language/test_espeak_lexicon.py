"""New words for a lexicon whose phones are espeak-ng's, and the phones that training lacks."""

from pathlib import Path

import pytest

from speech3.language.guessing import guess_pronunciations

pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")
COMMANDS = ["turn", "on", "off", "the", "light", "fan", "kitchen", "open", "close", "door", "window", "please", "radio"]


def lexicon_of(words: list[str], lang: str, path: Path) -> Path:
    found = guess_pronunciations(words, dict.fromkeys(words, 20), None, lang, spelled=False)
    path.write_text("\n".join(found.lines) + "\n")
    return path


def test_a_small_lexicon_of_espeak_gets_the_words_that_it_would_have_had(tmp_path: Path) -> None:
    new = ["lantern", "fork", "nine"]
    small = lexicon_of(COMMANDS, "en-us", tmp_path / "lexicon.txt")
    found = guess_pronunciations(new, {}, small, "en-us", spelled=False).guessed
    whole = guess_pronunciations([*COMMANDS, *new], dict.fromkeys(COMMANDS, 20), None, "en-us", spelled=False).guessed
    assert {word: set(found[word]) for word in found} == {word: set(whole[word]) for word in found}
    assert found["nine"] == [("n", "aɪ", "n")]


def test_a_phone_that_the_lexicon_lacks_is_named(tmp_path: Path) -> None:
    small = lexicon_of(COMMANDS, "en-us", tmp_path / "lexicon.txt")
    found = guess_pronunciations(["heater"], {}, small, "en-us", spelled=False)
    assert not found.guessed and "h" in found.unpronounced["heater"].split()


def test_a_lexicon_of_other_phones_still_needs_fifty_words(tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("turn T ER N\non AA N\noff AO F\n")
    with pytest.raises(Exception, match="50"):
        guess_pronunciations(["light"], {}, tmp_path / "lexicon.txt", "en-us", spelled=False)


def test_phones_that_train_lacks_are_said_with_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = dict.fromkeys(COMMANDS, 20)
    guess_pronunciations([*COMMANDS, "measure", "moon"], counts, None, "en-us", spelled=False)
    said = capsys.readouterr().err
    assert "ʒ in measure" in said and "m in measure, moon" in said
