"""The stage `graph`: language models, and the decoding graphs made from them.

OUT/lm/lm.arpa.gz       for decoding: given, or estimated                     OUT/SYSTEM/graph
OUT/lm/tuning.arpa.gz   for tuning, if the text contains sentences of dev:    OUT/SYSTEM/graph_tuning
                        estimated without them
OUT/lm/own.arpa.gz      if a model and its text are given: our own model,     OUT/SYSTEM/graph_own
                        estimated on the text, for a second error rate
OUT/lm/lexicon.txt      pronunciations of words that only lm.text or lm.arpa has, for the graphs
OUT/lm/text.txt         lm.text as the transcripts of a folder are written
OUT/lm/letters.arpa.gz  with lm.letters: model of the letters of words, which spells unseen words in each of the graphs
OUT/lm/g2p.safetensors  with lm.filler=spelled: model of letters and phones, which spells unseen words
OUT/lm/rescore.arpa.gz  with lm.rescore=ORDER: for rescoring lattices; estimated without dev's sentences
OUT/lm/rescore          with lm.rescore=lstm: the same, a neural model mixed with a 4-gram
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speech3.config import NeuralLmConfig
from speech3.corpora import LETTERS, change_of_text, pronounce_more, say_markup
from speech3.data import read_datadir, read_lines, read_sentences, with_progress, without_background
from speech3.decode import (
    GRAPH_LEXICON,
    UNSEEN_WEIGHT,
    Spelling,
    build_graph,
    join_words,
    one_word_grammar,
    phone_filler,
    spelled_filler,
    spelling_with,
)
from speech3.errors import DataError, MissingError, SettingError, Speech3Error, counted
from speech3.evaluate import ERROR_RATES, Metric
from speech3.hmm import Hmm, load_hmm, with_pronunciations
from speech3.io import GRAPH_DIR, TUNING_GRAPH_DIR
from speech3.language import (
    G2P,
    ArpaLm,
    Lexicon,
    estimate_lm,
    is_word,
    letter_units,
    lexicon,
    measure_sentences,
    mixed,
    new_word_weight,
    perplexity,
    read_arpa,
    read_checked,
    read_graphemes,
    read_lexicon,
    read_neural,
    write_arpa,
    write_lexicon,
)
from speech3.recipe.experiment import OWN_GRAPH, Experiment
from speech3.runtime import atomic_path, parallel_map, read_utf8, say, write_lines, write_text

_LM = "lm.arpa.gz"
_LETTERS = "letters.arpa.gz"
_NGRAMS = 4  # order of those beside a neural model; recipes/minilibri/RESULTS.md, Language models
WITH_LANG = ("any", "commonvoice")  # corpora whose sources have a directory lang/
_SECOND = {TUNING_GRAPH_DIR: "tuning.arpa.gz", OWN_GRAPH: "own.arpa.gz"}
Rate = Callable[[list[str], list[str]], float]


@dataclass(frozen=True)
class _Sentences(Iterable[list[str]]):
    """The lines of a file or, without one, the transcripts of train; read anew in each iteration."""

    path: Path | None
    e: Experiment

    def __iter__(self) -> Iterator[list[str]]:
        if self.path is None:
            yield from map(list, _said(self.e, "train"))
        else:
            ours = (_written(self.e), _normalised(self.e))  # which have no ids
            read = read_lines if self.path in ours else read_sentences
            for block in with_progress(read([self.path]), [self.path], f"reading {self.path.name}"):
                yield from (words for line in block.text.split("\n") if (words := line.split()))


@dataclass(frozen=True)
class _Text:
    """The text on which language models are estimated; `vocabulary`: the words that get a probability, seen or not."""

    sentences: _Sentences
    vocabulary: set[str]
    order: int
    pieces: bool

    def without(self, hidden: set[tuple[str, ...]]) -> Iterator[list[str]]:
        """The sentences without those in `hidden`, which are given as words."""
        return (sentence for sentence in self.sentences if self._words(sentence) not in hidden)

    def counted(self, hidden: set[tuple[str, ...]]) -> tuple[int, int]:
        """The number of sentences, and of those in `hidden`."""
        found = Counter(self._words(sentence) in hidden for sentence in self.sentences)
        return found.total(), found[True]

    def _words(self, sentence: list[str]) -> tuple[str, ...]:
        return tuple(join_words(sentence) if self.pieces else sentence)


def make_lm(e: Experiment) -> None:
    """Estimate the n-gram model, or check the given one; if needed, estimate models for tuning and for comparison.

    The tuning model is estimated without the sentences of dev that are not in train as well: scales tuned with a model
    that has seen the sentences are too small for sentences that it has not seen.
    """
    for left in (_further(e), _normalised(e)):
        left.unlink(missing_ok=True)
    if e.recipe.lm.grammar:
        return
    directory = e.out / "lm"
    given, models = _given(e), dict[str, ArpaLm]()
    _normalise_text(e)
    _pronounce_given(e, given)
    if given:
        models[_LM] = given
    if text := _text(e, given):
        ours = estimate_lm(text.sentences, text.order, text.vocabulary)
        models[_SECOND[OWN_GRAPH] if given else _LM] = ours
        hidden = _only_in_dev(e)
        total, in_dev = text.counted(hidden)
        if in_dev:
            say(f"  {in_dev} of the text's {total:,} sentences are in dev; the tuning model omits them")
            name, source = _SECOND[TUNING_GRAPH_DIR], "the language model's text without dev's sentences"
            models[name] = estimate_lm(text.without(hidden), text.order, text.vocabulary, source)
    for name in (_LM, _LETTERS, *_SECOND.values()):
        (directory / name).unlink(missing_ok=True)
    for name, model in models.items():
        write_arpa(model, directory / name)
        if not (text and text.pieces):
            say(f"  {name}: {', '.join(_perplexity(e, model, split) for split in ('dev', 'test'))}")
    if e.recipe.letters:
        _make_letters(e, models[_LM])


def _pronounce_given(e: Experiment, given: ArpaLm | None) -> None:
    """Write pronunciations of words that `lm.text` or `lm.arpa` has and the data's lexicon lacks, if it has guesses."""
    lm, further = e.recipe.lm, _further(e)
    if e.source is None or e.recipe.corpus not in WITH_LANG or not (lm.text or lm.arpa):
        return
    listed = read_lexicon(e.lexicon)
    words = set(given.words) if given and lm.arpa else set[str]()
    if lm.text:
        words.update(word for sentence in _Sentences(_lm_text(e), e) for word in sentence)
    if _in_another_case(words, listed.by_word):
        return  # what becomes of such a model or text is said elsewhere
    new = sorted(word for word in words if word not in listed.by_word and is_word(word))
    spelled = e.recipe.lexicon == "graphemes"
    train = without_background(read_datadir(e.data("train")))
    table = pronounce_more(new, e.source, train, e.recipe.lang, spelled=spelled, graphemes=_graphemes(e)) if new else {}
    has = {phone for pron in listed.pronunciations for phone in pron.phones}
    table = {word: kept for word, every in table.items() if (kept := [each for each in every if has.issuperset(each)])}
    if table:
        source = lm.text or lm.arpa
        say(f"  {len(table):,} words of {source} are not in the transcripts; their pronunciations: {further}")
        write_text(further, "".join(f"{word} {' '.join(each)}\n" for word, every in table.items() for each in every))


def _further(e: Experiment) -> Path:
    return e.out / "lm" / GRAPH_LEXICON


def _graphemes(e: Experiment) -> Sequence[str]:
    return read_graphemes(Path(e.recipe.graphemes)) if e.recipe.graphemes else ()


def _in_another_case(words: Collection[str], known: Collection[str]) -> bool:
    """Whether words are known, if at all, mostly in upper case instead of lower, or the other way round."""
    shared = len(set(words) & set(known))
    return not shared or 2 * shared < len({each.casefold() for each in words} & {each.casefold() for each in known})


def _normalise_text(e: Experiment) -> None:
    """Write `lm.text` as the transcripts of a folder are written, if the recordings are in one."""
    lm = e.recipe.lm
    if e.source is None or e.recipe.corpus != "any" or not lm.text:
        return
    if change := change_of_text(e.source, _graphemes(e), e.recipe.lang or ""):
        say_markup(Path(lm.text), _graphemes(e))
        sentences = _Sentences(Path(lm.text), e)
        write_lines(_normalised(e), (f"{line}\n" for each in sentences if (line := change(" ".join(each)))))


def _normalised(e: Experiment) -> Path:
    return e.out / "lm" / "text.txt"


def _lm_text(e: Experiment) -> Path | None:
    """`lm.text`, normalised if it has to be."""
    given = e.recipe.lm.text
    return (_normalised(e) if _normalised(e).exists() else Path(given)) if given else None


def _make_letters(e: Experiment, lm: ArpaLm) -> None:
    """Estimate the letter model on the words of the language model, each counted once."""
    letters = sorted(_phones_of_letters(e), key=len, reverse=True)
    cut = re.compile("|".join(map(re.escape, letters)))
    spellings = [parts for word in lm.words if len(parts := cut.findall(word)) > 1 and "".join(parts) == word]
    if not spellings:
        raise DataError(f"{e.lexicon}: no word has two letters, so unseen words cannot be spelled; set lm.letters=0")
    model = estimate_lm(map(letter_units, spellings), e.recipe.letters, source="spellings of words")
    write_arpa(model, e.out / "lm" / _LETTERS)


def _phones_of_letters(e: Experiment) -> dict[str, tuple[str, ...]]:
    path = e.out / "data" / LETTERS
    if not path.exists():
        raise MissingError(
            f"{path}: no such file, so unseen words cannot be spelled; prepare the data again (--from data), or set"
            " lm.letters=0"
        )
    return {pron.word: pron.phones for pron in read_lexicon(path).pronunciations}


def make_rescoring_lm(e: Experiment) -> None:
    """Estimate the model for rescoring lattices, without the sentences of dev, on which its weight is tuned."""
    order, text = e.recipe.lm.rescore, _text(e, _given(e))
    assert isinstance(order, int)
    if text is None:
        raise _no_text(order)
    model = estimate_lm(
        text.without(_only_in_dev(e)), order, text.vocabulary, "the language model's text without dev's sentences"
    )
    write_arpa(model, e.rescoring_lm)
    if not text.pieces:
        say(f"  {e.rescoring_lm.name}: {', '.join(_perplexity(e, model, split) for split in ('dev', 'test'))}")


def train_rescoring_lm(e: Experiment, config: NeuralLmConfig) -> None:
    """Train a neural model for rescoring lattices, without the sentences of dev, and mix it with n-grams.

    Dev chooses the epoch and the weights of the mixture.
    """
    from speech3.train import train_neural

    text, out = _text(e, _given(e)), e.rescoring_lm
    if text is None:
        raise _no_text(e.recipe.lm.rescore)
    # The network predicts the words of the text; the n-grams share out what is left among the lexicon's other words.
    hidden, seen = _only_in_dev(e), set[str]()
    files = {name: out / f"{name}.txt" for name in ("text", "words", "dev")}
    with atomic_path(files["text"]) as temporary, temporary.open("w", encoding="utf-8") as stream:
        print(file=stream)  # a file with an empty line is plain text: its first words are no utterance ids
        for sentence in text.without(hidden):
            seen.update(sentence)
            print(*sentence, file=stream)
    known = sorted(seen & text.vocabulary)
    if not known:
        path = text.sentences.path or e.data("train") / "text"
        raise DataError(
            f"{path}: without dev's sentences it has no word of {e.lexicon}, so lm.rescore={e.recipe.lm.rescore} has"
            " nothing to learn from; set lm.text to a text with these words"
        )
    write_text(files["words"], "\n".join(known) + "\n")
    write_text(files["dev"], "\n" + "\n".join(map(" ".join, _said(e, "dev"))) + "\n")
    workers = {"workers": e.jobs} if config.workers is None and config.strategy != "sgd" else {}
    config = config.model_copy(update=workers)
    neural = train_neural([files["text"]], out / "network", config, files["words"], files["dev"]).lm
    ngrams = estimate_lm(
        text.without(hidden), _NGRAMS, text.vocabulary, "the language model's text without dev's sentences"
    )
    mixture = mixed(neural, ngrams, None, files["dev"])
    mixture.save(out)
    found = {
        split: measure_sentences(mixture, list(_said(e, split)), f"perplexity of {split}").known
        for split in ("dev", "test")
    }
    perplexities = ", ".join(f"perplexity of {split} {value:.1f}" for split, value in found.items())
    say(f"  {config.kind}, weight {mixture.share:.2f}, and {_NGRAMS}-grams: {perplexities}")


def check_given(e: Experiment) -> None:
    """Read the models and the text that were given, to find a fault in them now and not after hours of training.

    Raises `Speech3Error`: a model is damaged, the text cannot be read or has symbols such as `<s>`, or `lm.rescore` is
    an order and there is no text.
    """
    lm = e.recipe.lm
    if lm.grammar:
        return
    given = _given(e)
    if lm.text:
        for _ in read_sentences([Path(lm.text)]):  # raises an error if a line cannot be used
            pass
    if isinstance(lm.rescore, str) and not e.rescoring_config:
        path = Path(lm.rescore)
        read_neural(path) if path.is_dir() else read_checked(path)
    elif lm.rescore and given and not _path_of_text(e, given):
        raise _no_text(lm.rescore)


def _no_text(rescore: int | str | None) -> Speech3Error:
    return SettingError(
        f"lm.rescore={rescore}: there is no text to make it of, only an ARPA file: set lm.text, or the path of a model"
        " as lm.rescore"
    )


def _given(e: Experiment) -> ArpaLm | None:
    lm, brought = e.recipe.lm, e.out / "data" / "lm.arpa.gz"
    if lm.arpa:
        return read_checked(Path(lm.arpa))
    return read_checked(brought) if brought.exists() and not lm.text else None


def _written(e: Experiment) -> Path:
    """The text that the stage `data` writes for some corpora."""
    return e.out / "data" / "lm_text"


def _path_of_text(e: Experiment, given: ArpaLm | None) -> Path | None:
    """The text; None: the transcripts of train or, if a model was given, none."""
    lm, written = e.recipe.lm, _written(e)
    if given and not lm.arpa and e.source:
        return written if written.exists() else lexicon.find_lang(e.source / "lang").text  # written: in plain words
    if not given and not lm.text and written.exists():
        return written
    return _lm_text(e)


def _text(e: Experiment, given: ArpaLm | None) -> _Text | None:
    """The text to estimate on; None if a model was given without its text."""
    pieces, path = e.out / "data" / "pieces.txt", _path_of_text(e, given)
    if not path and given:
        return None
    sentences = _Sentences(path, e)
    if pieces.exists():
        vocabulary = set(pieces.read_text(encoding="utf-8").split())
    else:
        vocabulary = _vocabulary(e, sentences) | set(given.words if given else ())
    order = given.order if given else e.recipe.lm.order
    assert order is not None
    return _Text(sentences, vocabulary, order, pieces.exists())


def _vocabulary(e: Experiment, sentences: Iterable[list[str]]) -> set[str]:
    """The words of the lexicon, including those that are not in the text, which may still be spoken."""
    seen = {word for sentence in sentences for word in sentence}
    listed = {*lexicon.lexicon_entries(read_utf8(e.lexicon), e.lexicon)}
    if _further(e).exists():
        listed |= read_lexicon(_further(e)).by_word.keys()
    words = {word for word in listed if word in seen or is_word(word)}
    if unseen := len(words - seen):
        say(
            f"  {unseen:,} of the lexicon's {len(words):,} words are not in the text, and share the"
            " discounted probability"
        )
    if strange := len(seen - words):
        say(f"  {strange:,} of the text's {len(seen):,} words are not in the lexicon and count as <unk>")
    return words


def _said(e: Experiment, split: str) -> Iterator[tuple[str, ...]]:
    """What was said, once: copies with background would double each count."""
    data = without_background(read_datadir(e.data(split)))
    return (tuple((utterance.text or "").split()) for utterance in data.utterances.values())


def _only_in_dev(e: Experiment) -> set[tuple[str, ...]]:
    hidden = set(_said(e, "dev"))
    hidden.difference_update(_said(e, "train"))
    return hidden


def _perplexity(e: Experiment, model: ArpaLm, split: str) -> str:
    said = list(_said(e, split))
    value, skipped = perplexity(model, said)
    left_out = f" (without {skipped:,} of {sum(map(len, said)):,} words, which it lacks)" if skipped else ""
    return f"perplexity of {split} {value:.1f}{left_out}"


def make_graphs(e: Experiment, system: str) -> None:
    """Build H o C o L o G of a system for each of its language models.

    The weight of unseen words is such that a language model that has not seen dev expects as many of them in dev as
    there are.
    """
    names = [GRAPH_DIR]
    for name, arpa in _SECOND.items():
        shutil.rmtree(e.model(system) / name, ignore_errors=True)
        if not e.recipe.lm.grammar and (e.out / "lm" / arpa).exists():
            names.append(name)
    hmm = load_hmm(e.model(system))
    build = partial(_make_graph, e, system, hmm, _spelling(e, hmm))
    for name, about in zip(names, parallel_map(build, names, e.jobs, "graphs", start_at_once=True), strict=True):
        unseen = f", unseen words at weight {about[UNSEEN_WEIGHT]:.3g}" if e.recipe.letters else ""
        say(f"  {name}: {about['states']:,} states, {about['arcs']:,} arcs{unseen}")
        if dropped := about["dropped"]:
            write_text(e.model(system) / name / "dropped.txt", "\n".join(dropped) + "\n")
            say(f"  not in the lexicon: {counted(len(dropped), 'word')} of the language model: {name}/dropped.txt")


def _make_graph(e: Experiment, system: str, hmm: Hmm, spelling: Spelling | None, name: str) -> dict[str, Any]:
    lm = one_word_grammar(hmm.lexicon) if e.recipe.lm.grammar else read_arpa(e.out / "lm" / _SECOND.get(name, _LM))
    out, further = e.model(system) / name, _further(e)
    if not further.exists():
        return build_graph(hmm, lm, out, e.recipe.lm.self_loop_scale, spelling)
    # The graph keeps the pronunciations of words that only its language model has, so that they can be aligned.
    more = read_lexicon(further).pronunciations
    hmm = with_pronunciations(hmm, more, str(further))
    about = build_graph(hmm, lm, out, e.recipe.lm.self_loop_scale, spelling)
    units = spelling.pronunciations if spelling else ()
    write_lexicon(Lexicon((*more, *units)), out / GRAPH_LEXICON)
    return about


def _spelling(e: Experiment, hmm: Hmm) -> Spelling | None:
    """How the graphs spell unseen words, by letters or by phones, or the filler in their place; None: neither."""
    lm = e.recipe.lm
    if lm.filler == "spelled":
        return spelled_filler(hmm, e.out / "lm" / G2P)
    if not e.recipe.letters:
        return phone_filler(hmm, phones=bool(lm.filler), garbage=e.recipe.negatives is not None)
    directory = e.out / "lm"
    tuning = directory / _SECOND[TUNING_GRAPH_DIR]
    said = ([word for word in sentence if lexicon.is_word(word)] for sentence in _said(e, "dev"))
    weight = new_word_weight(read_arpa(tuning if tuning.exists() else directory / _LM), said)
    return spelling_with(hmm, read_arpa(directory / _LETTERS), weight, _phones_of_letters(e))


def spoken(text: str | None) -> str:
    """The words of a text, without noises."""
    return " ".join(word for word in (text or "").split() if is_word(word))


def error_rate(metric: Metric) -> Rate:
    """The error rate of texts (references, hypotheses) as a fraction, without noises."""
    return partial(_of_words, ERROR_RATES[metric])


def _of_words(rate: Rate, references: list[str], hypotheses: list[str]) -> float:
    return rate([spoken(text) for text in references], [spoken(text) for text in hypotheses])
