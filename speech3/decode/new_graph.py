"""Another decoding graph for a trained model: other words, another language model or a grammar; and its choice.

OUT holds what `build_graph` writes and a lexicon.txt with the pronunciations that differ from the model's, if any do.
Decoding with the graph reads both (`chosen_graph`), so that the words can be aligned as well. If the model's own graph
spells unseen words (`speech3.decode.grammar`), so does the new one, unless it has a grammar.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from speech3.config import LmConfig
from speech3.data import (
    MARKS,
    case_folded,
    is_arpabet,
    lower_case,
    sentences_of_file,
    upper_case,
    words_in_spelling,
)
from speech3.decode.grammar import GRAPH_LEXICON, are_pieces, from_word_graph, read_spelling, with_lexicon_of
from speech3.decode.graph import build_graph, decode_directory
from speech3.decode.hot_words import parse_hot, read_hot, with_hot_words
from speech3.decode.trained_model import TrainedModel
from speech3.errors import DataError, MissingError, OccupiedError, SettingError, Speech3Error, counted, listed
from speech3.hmm import NONE, GuessedPronunciations, Hmm, by_espeak, by_letters, load_hmm, with_pronunciations
from speech3.io import GRAPH_DIR, GRAPH_FILE, GRAPH_FILES, HMM_FILE, LM_FILE, TUNING_GRAPH_DIR
from speech3.language import (
    ENOUGH_PAIRS,
    G2P,
    JOINER,
    UNKNOWN,
    WORD_START,
    AddedWord,
    ArpaLm,
    Lexicon,
    Pronunciation,
    WordGraph,
    add_words,
    estimate_lm,
    is_word,
    lexicon_lines,
    read_added,
    read_arpa,
    read_checked,
    read_jsgf,
    read_lexicon,
    read_lexicon_text,
    read_sentences,
    write_lexicon,
)
from speech3.runtime import check_output, read_json, say, write_text

_DROPPED = "dropped.txt"
# Not the lexicon, which is made to be edited and passed as --lexicon.
_WRITTEN = (*(name for name in GRAPH_FILES if name != GRAPH_LEXICON), _DROPPED)
Model = TypeVar("Model", bound=TrainedModel)
_ORDER = 3  # default order of a model estimated from --text


@dataclass(frozen=True)
class GraphSources:
    """The user's files to build a graph from; None stands for the model's own."""

    # lm, text, grammar, sentences: an ARPA file; text to estimate an n-gram model of `order` from; a JSGF grammar; a
    # list of sentences. At most one of them may be given.
    lm: Path | None = None
    text: Path | None = None
    order: int | None = None
    grammar: Path | None = None
    sentences: Path | None = None
    lexicon: Path | None = None  # pronunciations that take precedence over the model's
    add: Path | None = None  # a list of words to add (`speech3.language.added_words`)
    # espeak-ng's language code, for guessing pronunciations; None: that of the model's training, if it is known
    lang: str | None = None


@dataclass(frozen=True)
class NewGraph:
    """The contents of graph.json, and the pronunciations that were guessed."""

    about: dict[str, Any]
    guessed: GuessedPronunciations


def make_graph(model: Path, out: Path, sources: GraphSources) -> NewGraph:
    """Build a graph from a model's HMMs and write it to the directory `out`.

    Raises `Speech3Error`: options exclude one another; `out` exists and is not a graph; a file is faulty; a word listed
    explicitly cannot be pronounced; only the number of the model's outputs is known.
    """
    _check(sources)
    directory = decode_directory(model) if model.suffix == ".onnx" and not model.is_dir() else model
    own = hmm = load_hmm(directory)
    brought = _brought(directory)  # of words that only the language model of the model's own graph has
    if brought:
        own = hmm = with_pronunciations(hmm, brought, str(directory / GRAPH_DIR / GRAPH_LEXICON))
    _check_out(out, directory, sources)
    language = _language(sources, directory, own.lexicon)
    if isinstance(language, ArpaLm):
        _check_pieces(language, sources)
    # Pronunciations: those that are given, then guesses for the other words of the list or grammar.
    added = read_added(sources.add) if sources.add else []
    for word in added:
        for phones in word.pronunciations:
            _check_sound(Pronunciation(word.word, phones), own.lexicon, f"{sources.add}:{word.line}")
    listed = [Pronunciation(word.word, phones) for word in added for phones in word.pronunciations]
    given = _given(sources.lexicon, language, added, own.lexicon) if sources.lexicon else []
    for source, pronunciations in ((sources.lexicon, given), (sources.add, listed)):
        if pronunciations:
            hmm = with_pronunciations(hmm, pronunciations, str(source))
    named = [*(language.words if isinstance(language, WordGraph) else ()), *(word.word for word in added)]
    named = [word for word in dict.fromkeys(named) if word not in hmm.lexicon.by_word]
    source = sources.add or sources.grammar or sources.sentences
    pronounced = partial(_pronounced, hmm, sources, language, kept=directory / G2P)
    _check_spelling(named, own.lexicon, source, pronounced)
    hmm, guessed = pronounced(named)
    lm = from_word_graph(language, hmm.lexicon) if isinstance(language, WordGraph) else language
    if sources.add and isinstance(lm, ArpaLm):
        lm = _with_added(lm, added, listed, guessed, sources.add)
    # Unseen words are spelled as in the model's own graph.
    spelling = read_spelling(directory / GRAPH_DIR)
    if spelling and (are_pieces(lm.words) or not (isinstance(lm, ArpaLm) or spelling.is_filler)):
        spelling = None
    about = build_graph(hmm, lm, out, _self_loop_scale(directory), spelling)
    units = spelling.pronunciations if spelling else ()
    replaced = {pron.word for pron in (*given, *listed)}
    kept = [pron for pron in brought if pron.word not in replaced]
    if changed := (*kept, *given, *listed, *guessed.pronunciations, *units):
        write_lexicon(Lexicon(changed), out / GRAPH_LEXICON)
    if about["dropped"]:
        write_text(out / _DROPPED, "\n".join(about["dropped"]) + "\n")
    else:
        (out / _DROPPED).unlink(missing_ok=True)
    return NewGraph(about, guessed)


def _brought(model: Path) -> list[Pronunciation]:
    """The pronunciations that the model's own graph adds to its lexicon, but for the letters of unseen words."""
    path = model / GRAPH_DIR / GRAPH_LEXICON
    return [pron for pron in read_lexicon(path).pronunciations if JOINER not in pron.word] if path.exists() else []


def _check(sources: GraphSources) -> None:
    languages = {f"--{name}": getattr(sources, name) for name in ("lm", "text", "grammar", "sentences")}
    chosen = [name for name, path in languages.items() if path]
    if len(chosen) > 1:
        raise SettingError(f"{' and '.join(chosen)} exclude one another: each defines what is recognised; choose one")
    if sources.add and chosen and chosen[0] in ("--grammar", "--sentences"):
        raise SettingError(
            f"--add and {chosen[0]} exclude one another: {chosen[0]} lists everything that can be recognised; add the"
            f" words to {languages[chosen[0]]}"
        )
    if sources.order and not sources.text:
        raise SettingError("--order applies to the language model estimated from --text; add --text or omit --order")
    if not (chosen or sources.add or sources.lexicon):
        raise SettingError("nothing to change: add --add, --lexicon, --lm, --text, --grammar or --sentences")


def _check_out(out: Path, model: Path, sources: GraphSources) -> None:
    own = {(model / name).resolve() for name in (GRAPH_DIR, TUNING_GRAPH_DIR)}
    place = out.resolve()
    if place in own or (place.name in (GRAPH_DIR, TUNING_GRAPH_DIR) and (place.parent / HMM_FILE).exists()):
        raise OccupiedError(
            f"{out}: this is {'the' if place in own else 'a'} model's own graph, which other models may share; choose"
            " another directory, and decode with --graph"
        )
    check_output(out, [sources.lm, sources.text, sources.grammar, sources.sentences, sources.add], _WRITTEN)
    if out.is_dir() and any(out.iterdir()) and not (out / GRAPH_FILE).exists():
        raise OccupiedError(f"{out}: exists and is not an earlier graph; move it, or choose another directory")


def _language(sources: GraphSources, model: Path, lexicon: Lexicon) -> ArpaLm | WordGraph:
    if sources.grammar:
        return read_jsgf(sources.grammar)
    more = {pron.word for pron in read_lexicon(sources.lexicon).pronunciations} if sources.lexicon else set()
    if sources.sentences:
        return read_sentences(sources.sentences, partial(_in_spelling, lexicon=lexicon, more=more))
    if sources.lm:
        return read_checked(sources.lm)
    if sources.text:
        sentences = _in_spelling(sentences_of_file(sources.text), sources.text, lexicon, more)
        if (first := next(sentences, None)) is None:
            raise DataError(f"{sources.text}: contains no words; write one sentence per line")
        return estimate_lm(chain([first], sentences), sources.order or _ORDER, source=str(sources.text))
    return _own_lm(model)


def _in_spelling(
    sentences: Iterable[Sequence[str]], source: Path, lexicon: Lexicon, more: Collection[str]
) -> Iterator[list[str]]:
    """The sentences in the spelling of the model: its words where they differ only in letter case and punctuation.

    Words that it lacks lose punctuation at their edges that none of its words has there, and are in the letter case
    that all of its words have, if they have one. How many words were changed is said. Sentences of punctuation alone
    are left out, and word pieces stay as they are. `more`: further words with their spelling.
    """
    known = {*lexicon.by_word, *more}
    if are_pieces(known):
        yield from map(list, sentences)
        return
    folded, marks = case_folded([*filter(is_word, known)]), _foreign_marks(lexicon.by_word)
    _, in_case = _case_of(lexicon)

    def spelled(token: str) -> list[str]:
        words = words_in_spelling(token, known, folded, lexicon.language)
        if all(word in known for word in words):
            return words
        return [in_case(token.strip(marks))]

    total = changed = 0
    for sentence in sentences:
        found = [word for token in sentence for word in spelled(token)]
        if found:
            total += len(sentence)
            changed += sum((Counter(sentence) - Counter(found)).values())
            yield found
    if changed:
        say(f"{source}: {changed:,} of {total:,} words were changed to the model's spelling (letter case, punctuation)")


def _case_of(lexicon: Lexicon) -> tuple[str, Callable[[str], str]]:
    """``upper`` or ``lower``, if all words are in that case, and what changes a word to it; else neither."""
    cased = [word for word in lexicon.by_word if is_word(word) and word.upper() != word.lower()]
    for name, change in {"upper": upper_case, "lower": lower_case}.items():
        changed = partial(change, language=lexicon.language)
        if cased and all(word == changed(word) for word in cased):
            return name, changed
    return "", str


def _foreign_marks(words: Iterable[str]) -> str:
    """The marks of punctuation with which none of these words begins or ends."""
    edges = {edge for word in words for edge in (word[:1], word[-1:])}
    return "".join(mark for mark in MARKS if mark not in edges)


def _own_lm(model: Path) -> ArpaLm:
    graph = model / GRAPH_DIR
    if (graph / LM_FILE).exists():
        return read_arpa(graph / LM_FILE)
    if not (graph / GRAPH_FILE).exists():
        raise MissingError(f"{model}: has no graph whose language model could be used; pass one with --lm ARPA")
    source = read_json(graph / GRAPH_FILE).get("lm")
    raise MissingError(
        f"{graph}: has no {LM_FILE}: it was built from a grammar or by an earlier version of speech3, from {source};"
        " pass a language model with --lm ARPA, or everything that can be said with --sentences"
    )


def _check_sound(pron: Pronunciation, lexicon: Lexicon, where: str) -> None:
    """Refuse a word that only sounds like silence or noise; the model may have such words of its own."""
    known = pron in (replace(own, prob=pron.prob, silences=None) for own in lexicon.by_word.get(pron.word, ()))
    if is_word(pron.word) and not known and {*lexicon.silence_phones, *lexicon.noise_phones}.issuperset(pron.phones):
        raise DataError(
            f"{where}: {pron.word} has no phone of speech, only {' '.join(pron.phones)}; write how it is pronounced, or"
            " remove the line"
        )


def _given(
    path: Path, language: ArpaLm | WordGraph, added: Sequence[AddedWord], lexicon: Lexicon
) -> list[Pronunciation]:
    """The lexicon's pronunciations of words to recognise, except words whose pronunciation the added list gives.

    `lexicon`: the model's.
    """
    wanted = {*language.words, *(word.word for word in added)}
    for line in lexicon_lines(read_lexicon_text(path), path) if path.exists() else ():
        if line.word in wanted:
            _check_sound(Pronunciation(line.word, line.phones), lexicon, f"{path}:{line.number}")
    every = read_lexicon(path).pronunciations
    used = [pron for pron in every if pron.word in wanted]
    if not used:
        raise DataError(
            f"{path}: none of its words ({listed([pron.word for pron in every])}) is in {language.source}"
            f"{' or added' if added else ''}, so it would change nothing; spell them the same way (same upper or lower"
            " case), or add them to the language model with --add"
        )
    if unused := len({pron.word for pron in every} - wanted - {UNKNOWN}):
        say(f"{path}: {unused:,} of its words are not in {language.source} and cannot be recognised")
    pronounced = {word.word for word in added if word.pronunciations}
    return [pron for pron in used if pron.word not in pronounced]


def _check_pieces(lm: ArpaLm, sources: GraphSources) -> None:
    if sources.add and are_pieces(lm.words):
        raise DataError(
            f"{lm.source}: this language model consists of word pieces, which can form any word, so {sources.add} has"
            " nothing to add; to make words more probable, pass --text with sentences that contain them, cut into its"
            " pieces"
        )


def _pronounced(
    hmm: Hmm, sources: GraphSources, language: ArpaLm | WordGraph, named: Sequence[str], kept: Path
) -> tuple[Hmm, GuessedPronunciations]:
    """The model with guessed pronunciations for the words that it lacks: by espeak-ng, else from their letters.

    Words that are `named`, in a list or grammar, must get a pronunciation. Words of a language model get one only if
    `lang` is given; otherwise they are left out.
    """
    source = sources.add or sources.grammar or sources.sentences
    others = language.words if isinstance(language, ArpaLm) and sources.lang else []
    unknown = [*named, *(word for word in others if word not in hmm.lexicon.by_word and is_word(word))]
    if not unknown:
        return hmm, NONE
    try:
        found = _guessed(hmm, unknown, sources.lang, kept)
    except Speech3Error as error:
        lexicon = hmm.lexicon  # too small to learn a notation from, espeak-ng helps only if its own is in it
        espeak = not sources.lang and (len(lexicon.by_word) >= ENOUGH_PAIRS or not is_arpabet(lexicon.phones))
        why = str(error)
        if isinstance(error, DataError):  # its remedy is for recipes
            why = why.removesuffix(f"; {error.remedy}")
        other = ", or let espeak-ng guess with --lang CODE" if espeak else ""
        raise error.restated(
            f"{source or language.source}: cannot pronounce {listed(unknown)}: {why}; write `word phone phone ...` into"
            f" a file and pass it with --lexicon FILE{other}"
        ) from error
    if left := [word for word in named if word in found.unpronounced]:
        reasons = listed(f"{word} {found.unpronounced[word]}" for word in left)
        raise DataError(
            f"{source}: cannot pronounce {counted(len(left), 'word')}: {reasons}; remove them, or write `word phone"
            " phone ...` into a file for --lexicon"
        )
    return with_pronunciations(hmm, found.pronunciations, f"pronunciations guessed {found.how}"), found


def _guessed(hmm: Hmm, words: Sequence[str], lang: str | None, kept: Path) -> GuessedPronunciations:
    if code := lang or hmm.lexicon.language:
        try:
            return by_espeak(hmm, words, {}, code, kept)
        except Speech3Error:
            if lang:
                raise
    return by_letters(hmm, words, kept)


def _check_spelling(
    words: Sequence[str], lexicon: Lexicon, source: Path | None, pronounce: Callable[[Sequence[str]], object]
) -> None:
    """Refuse words in another letter case than all of the lexicon, or with punctuation at an edge that it has not.

    `on.` would not be its word `on`. `pronounce` raises an error, which is told as well, if the words that are right,
    but not in the lexicon, cannot be pronounced.
    """
    right, faults = {word: word for word in words if is_word(word)}, []
    case, in_case = _case_of(lexicon)
    if any(word != in_case(word) for word in right):
        faults.append(f"are in {case} case")
        right = {word: in_case(word) for word in right}
    marks = _foreign_marks(lexicon.by_word)
    if any(word.strip(marks) != word for word in right):
        faults.append("have no punctuation")
        right = {word: new.strip(marks) for word, new in right.items()}
    if not (wrong := [word for word, new in right.items() if word != new]):
        return
    told = f"{source}: {listed(wrong)}: the model's words {' and '.join(faults)}"
    unknown = [word for word in dict.fromkeys(right.values()) if word and word not in lexicon.by_word]
    try:
        pronounce(unknown)
    except Speech3Error as error:
        raise error.restated(f"{told}; {str(error).removeprefix(f'{source}: ')}") from error
    raise DataError(f"{told}; write {listed([right[word] for word in wrong if right[word]]) or 'words alone'}")


def _with_added(
    lm: ArpaLm, added: Sequence[AddedWord], given: Sequence[Pronunciation], guessed: GuessedPronunciations, source: Path
) -> ArpaLm:
    known = set(lm.words)
    if old := [word.word for word in added if word.word in known]:
        say(f"{len(old)} of the words are already in the language model and keep their probabilities: {listed(old)}")
    new = [word for word in added if word.word not in known]
    if not (new or given or guessed.pronunciations):
        raise DataError(f"{source}: nothing to add: the model already has all of its words")
    return add_words(lm, new, source) if new else lm


def _self_loop_scale(model: Path) -> float:
    """The self-loop scale of the model's own graph; without a graph, the recipes' default."""
    own = model / GRAPH_DIR / GRAPH_FILE
    scale = read_json(own).get("self_loop_scale") if own.exists() else None
    return float(LmConfig.model_fields["self_loop_scale"].default if scale is None else scale)


def replace_graph(recognizer: Model, graph: Path | None, hot: Path | Sequence[str] | None = None) -> Model:
    """The recogniser with a graph from `speech3 graph` in place of its own, and with hot words: a file, or its lines.

    Hot words that the graph lacks are added to it, as by `speech3 graph --add`, with guessed pronunciations.

    The tuned settings of the model stay in use. Graph and settings are read here, before hours of audio are.

    Raises `Speech3Error`: there is no graph, or it belongs to another model; the model is not tuned; a hot word is not
    in the graph and cannot be added to it, since it cannot be pronounced or the graph is that of a grammar.
    """
    if graph:
        if not (graph / GRAPH_FILE).exists():
            raise MissingError(f"{graph}: not a decoding graph (it has no graph.json); `speech3 graph` makes one")
        chosen = recognizer.read_graph(graph)
        recognizer = replace(recognizer, outputs=with_lexicon_of(recognizer.outputs, graph), chosen_graph=chosen)
    _, searched = recognizer.settings, recognizer.graph
    if not hot:
        return replace(recognizer, chosen_graph=searched)
    if isinstance(hot, Path) and not hot.exists():
        raise MissingError(f"{hot}: no such file; write the words to expect into a file, one word or phrase a line")
    found, source = (read_hot(hot), hot) if isinstance(hot, Path) else (parse_hot(hot), Path("hot"))
    new = dict.fromkeys(word for words in found for word in words if word not in searched.label_of)
    if new and searched.mark != WORD_START and (searched.path / LM_FILE).exists():
        recognizer = _with_words(recognizer, searched.path, list(new), source)
        searched = recognizer.graph
    return replace(recognizer, chosen_graph=with_hot_words(searched, found, source))


def _with_words(recognizer: Model, graph: Path, words: Sequence[str], source: Path) -> Model:
    """The recogniser with words added to its graph."""
    with TemporaryDirectory(prefix="speech3-") as scratch:
        added, out = Path(scratch) / "words.txt", Path(scratch) / "graph"
        write_text(added, "".join(f"{word}\n" for word in words))
        try:
            given = graph / GRAPH_LEXICON  # words that were added to a chosen graph
            lexicon = given if graph.parent != recognizer.directory and given.exists() else None
            made = make_graph(recognizer.directory, out, GraphSources(lm=graph / LM_FILE, add=added, lexicon=lexicon))
        except Speech3Error as error:
            told = str(error).replace(str(added), str(source))
            where = "; `speech3 graph MODEL OUT --add FILE` has these options" if "--" in told else ""
            raise error.restated(told + where) from error
        say(f"{source}: not in the graph, and added to it: {listed(words)}")
        for pron in made.guessed.pronunciations:
            say(f"  {pron.word} {' '.join(pron.phones)}")
        outputs = with_lexicon_of(recognizer.outputs, out)
        return replace(recognizer, outputs=outputs, chosen_graph=recognizer.read_graph(out))
