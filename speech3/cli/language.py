"""The verbs of language models and pronunciations: the groups `speech3 lm` and `speech3 g2p`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from speech3.cli import _verb
from speech3.errors import MismatchError, MissingError, OccupiedError, SettingError, counted

if TYPE_CHECKING:
    from speech3.language import Perplexity

_ORDER = 3  # default order of n-grams
lm_verbs = typer.Typer(no_args_is_help=True, help="Train, prune, interpolate and measure language models.")
g2p_verbs = typer.Typer(no_args_is_help=True, help="Pronounce words as a lexicon does, or spell phones.")


@lm_verbs.command("train")
def train_lm(
    texts: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEXT...",
            help="One sentence per line, or Kaldi's text; may be compressed; - for standard input."
            " With --neural, also KEY=VALUE: changes to the preset.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="LM", help="ARPA file to write; gzipped if it ends in .gz. With --neural, a directory."),
    ],
    order: Annotated[int | None, typer.Option(help="Length of the longest n-grams, 1 to 6; default: 3.")] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Word list or lexicon; other words count as `<unk>`.")
    ] = None,
    counts: Annotated[
        bool, typer.Option("--counts", help="The files hold n-grams and their counts, as written by ngram-count.")
    ] = False,
    minimum_counts: Annotated[
        str, typer.Option(metavar="N,N,...", help="How often n-grams of order 1, 2, ... must occur to be kept.")
    ] = "1",
    neural: Annotated[
        str | None, _verb.preset("lm", "Train a neural model: preset in conf/lm (lstm, transformer), or a YAML file.")
    ] = None,
    dev: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="With --neural: keep the epoch that predicts this text best.")
    ] = None,
) -> None:
    """Estimate a model with interpolated modified Kneser-Ney smoothing, or train a neural one.

    `speech3 lm train text.gz more.txt --order 3 --out lm.arpa.gz`

    `zcat corpus.gz | speech3 lm train - --order 4 --minimum-counts 1,1,2 --vocabulary lexicon.txt --out lm.arpa.gz`

    Texts may be of any size: besides the vocabulary at most 2 GB are held in memory; the rest is sorted in files under
    TMPDIR.

    `speech3 lm train text.gz --neural lstm --dev dev.txt --out exp/lstm lm.width=300 lm.strategy=asgd lm.workers=4`

    A neural model is trained by the asynchronous engine; the same command continues a training that was stopped. Words
    or word pieces (`lm.pieces=1000`) are its units.
    """
    from speech3.language import train_lm as training

    if neural is not None:
        if counts or minimum_counts != "1" or order is not None:
            raise SettingError("--order, --counts, --minimum-counts: for n-grams; remove them, or --neural")
        _train_neural(texts, out, neural, vocabulary, dev)
        return
    if dev:
        raise SettingError(f"--dev {dev}: only for --neural, whose epochs it chooses from; remove it")
    _check_file(out, [*texts, vocabulary], "--out ")
    if keys := _overrides(texts):
        raise SettingError(f"{keys[0]}: only --neural has keys, and there is no such text; remove it, or add --neural")
    try:
        minimums = [int(field) for field in minimum_counts.split(",")]
    except ValueError as error:
        raise SettingError(f"--minimum-counts {minimum_counts}: expected whole numbers, such as 1,1,2") from error
    found = training.train(texts, _ORDER if order is None else order, out, vocabulary, minimums, counts)
    print(f"{out}: {', '.join(f'{size:,} {length}-grams' for length, size in enumerate(found.sizes, 1))}")
    _print_unknown(found.unknown, found.words, vocabulary)


def _train_neural(texts: list[Path], out: Path, preset: str, vocabulary: Path | None, dev: Path | None) -> None:
    from speech3.config import NeuralLmConfig, changed, load_preset, refuse_unused
    from speech3.io import A_MODEL, RUN_FILE
    from speech3.language import NGRAMS, WRITTEN
    from speech3.runtime import check_output
    from speech3.train import train_neural

    check_output(out, [*texts, vocabulary, dev], WRITTEN, not_in=[A_MODEL], option="--out ")
    if (out / NGRAMS).exists() and not (out / RUN_FILE).exists():
        raise OccupiedError(f"--out {out}: holds a mixture of language models; choose another directory")
    overrides = _overrides(texts)
    config = changed(load_preset(NeuralLmConfig, "lm", preset), "lm", overrides, preset)
    refuse_unused(overrides, {} if config.kind == "transformer" else {"lm.heads": "lm.kind=transformer"})
    found = train_neural([text for text in texts if str(text) not in overrides], out, config, vocabulary, dev)
    parameters = sum(value.numel() for value in found.lm.network.parameters())
    chosen = f", perplexity {found.lm.dev:.1f} on {dev}" if dev else ""
    print(f"{out}: {config.kind}, {counted(len(found.lm.units), 'unit')}, {counted(parameters, 'parameter')}{chosen}")
    _print_unknown(found.unknown, found.words, vocabulary)


def _overrides(texts: list[Path]) -> list[str]:
    return [str(text) for text in texts if "=" in str(text) and not text.exists()]


def _print_unknown(unknown: int, words: int, vocabulary: Path | None) -> None:
    if vocabulary:
        share = 100 * unknown / words if words else 0.0
        print(f"{unknown:,} of {words:,} words of the text ({share:.2f} %) are not in {vocabulary}: <unk>")


@lm_verbs.command()
def prune(
    lm: Annotated[Path, typer.Argument(metavar="LM", help="ARPA file, compressed or not.")],
    out: Annotated[Path, typer.Argument(help="ARPA file to write; gzipped if it ends in .gz.")],
    threshold: Annotated[
        float, typer.Option(metavar="X", help="Relative increase of the perplexity below which an n-gram is removed.")
    ],
) -> None:
    """Remove n-grams that hardly affect the perplexity, by relative entropy (Stolcke 1998).

    `speech3 lm prune lm.arpa.gz small.arpa.gz --threshold 1e-7`

    All back-off weights are recomputed; threshold 0 does only that, and repairs a model with wrong back-off weights.
    """
    from speech3.language import check_sums, prune as pruned, read_arpa, write_arpa

    _check_file(out, [lm])
    if not threshold >= 0:
        raise SettingError(f"--threshold {threshold:g}: must be >= 0, such as 1e-7")
    model = read_arpa(lm)
    check_sums(model, mending=True)
    smaller = pruned(model, threshold)
    write_arpa(smaller, out)
    sizes = [len(smaller.rows(length).prob_R) if length <= smaller.order else 0 for length in range(1, model.order + 1)]
    parts = (f"{size:,} of {len(model.rows(length).prob_R):,} {length}-grams" for length, size in enumerate(sizes, 1))
    print(f"{out}: {', '.join(parts)}")


@lm_verbs.command()
def interpolate(
    lms: Annotated[list[Path], typer.Argument(metavar="LM...", help="ARPA files; or a neural model and an ARPA file.")],
    out: Annotated[
        Path, typer.Option(metavar="LM", help="ARPA file to write, gzipped if it ends in .gz; or directory.")
    ],
    tune: Annotated[Path | None, typer.Option(metavar="TEXT", help="Held-out text to choose the weights on.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="W,W,...", help="The weights, which sum to 1.")] = None,
) -> None:
    """Interpolate models linearly, with the given weights or those that predict a text best.

    `speech3 lm interpolate ours.arpa.gz large.arpa.gz --tune dev.txt --out mixed.arpa.gz`

    `speech3 lm interpolate ours.arpa.gz large.arpa.gz --weights 0.3,0.7 --out mixed.arpa.gz`

    `speech3 lm interpolate exp/lstm ours.arpa.gz --tune dev.txt --out exp/mixed`

    The text for `--tune` should come from neither the training nor the test data, and resemble what will be recognised.
    The mixture of a neural model and n-grams is a directory, which `lm perplexity` and `rescore` read.
    """
    from speech3.io import A_MODEL, A_TRAINING
    from speech3.language import (
        WRITTEN,
        check_sums,
        is_neural,
        measure_text,
        mixtures as mixing,
        read_arpa,
        read_tokens,
        write_arpa,
    )
    from speech3.runtime import check_output

    if (tune is None) == (weights is None):
        raise SettingError("use either --tune TEXT or --weights 0.3,0.7")
    if any(map(is_neural, lms)):
        check_output(out, [*lms, tune], WRITTEN, not_in=[A_MODEL, A_TRAINING], option="--out ")
    else:
        _check_file(out, [*lms, tune], "--out ")
    values = []
    if weights is not None:
        try:
            values = [float(field) for field in weights.split(",")]
        except ValueError as error:
            raise SettingError(f"--weights {weights}: expected numbers, such as 0.3,0.7") from error
    if any(map(is_neural, lms)):
        _interpolate_neural(lms, out, tune, values)
        return
    models = [read_arpa(path) for path in lms]
    mixing.check_models(models)
    for model in models:
        check_sums(model)
    if not values:
        assert tune
        vocabulary = mixing.joint_vocabulary(models)
        text = read_tokens([tune], mixing.tuning_numbers(vocabulary))
        values = mixing.best_weights(models, text, vocabulary, str(tune))
    mixture = mixing.interpolate(models, values, str(out))
    write_arpa(mixture, out)
    for model, value in zip([*models, mixture], [*values, 1.0], strict=True):
        found = _perplexity(measure_text(model, [tune])) if tune and tune.is_file() else ""
        print(f"{model.source}: weight {value:.4f}{found}" if model is not mixture else f"{out}: the mixture{found}")


def _perplexity(found: "Perplexity") -> str:
    # Models that know different words are not compared by their perplexities alone, so unknown words stand beside.
    unknown = f" without {found.unknown:,} unknown of {found.words:,} words" if found.unknown else ""
    return f", perplexity {found.known:.1f}{unknown}"


def _check_file(out: Path, inputs: list[Path | None], option: str = "") -> None:
    """Refuse to replace an input, or a file that is no language model."""
    from speech3.language import looks_like_arpa
    from speech3.runtime import check_output

    check_output(out, inputs, kind=("an ARPA file", looks_like_arpa), option=option)


def _interpolate_neural(lms: list[Path], out: Path, tune: Path | None, weights: list[float]) -> None:
    from speech3.language import is_neural, measure_sentences, mixed, mixtures, read_checked, read_known, read_neural

    networks, arpas = [lm for lm in lms if is_neural(lm)], [lm for lm in lms if not is_neural(lm)]
    if len(networks) != 1 or len(arpas) != 1:
        raise SettingError(
            f"{', '.join(map(str, lms))}: pass one neural model and one ARPA file; interpolate several ARPA files first"
        )
    neural, ngrams = read_neural(networks[0]), read_checked(arpas[0])
    if neural.ngrams is not None:
        raise SettingError(f"{networks[0]}: is a mixture already; pass the neural model that it was made of")
    if weights:
        mixtures.check_weights(weights, lms)
        weights = weights if is_neural(lms[0]) else weights[::-1]
    mixture = mixed(neural, ngrams, weights[0] if weights else None, tune)
    mixture.save(out)
    for path, weight in ((networks[0], mixture.share), (arpas[0], 1 - mixture.share)):
        print(f"{path}: weight {weight:.4f}")
    found = _perplexity(measure_sentences(mixture, read_known(mixture, [tune]))) if tune else ""
    print(f"{out}: the mixture{found}")


@lm_verbs.command()
def perplexity(
    lm: Annotated[Path, typer.Argument(metavar="LM", help="ARPA file, or directory of a neural model or mixture.")],
    texts: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEXT...", help="One sentence per line, or Kaldi's text; may be compressed; - for standard input."
        ),
    ],
    as_json: _verb.Json = False,
) -> None:
    """Measure how well a model predicts a text: perplexity, unknown words, and the orders of the n-grams found.

    `speech3 lm perplexity lm.arpa.gz test.txt`
    """
    import json

    from speech3.language import (
        describe_perplexity,
        is_neural,
        measure_sentences,
        measure_text,
        read_checked,
        read_known,
        read_neural,
    )

    if is_neural(lm):
        model = read_neural(lm)
        found = measure_sentences(model, read_known(model, texts), "scoring")
    else:
        found = measure_text(read_checked(lm), texts)
    if found.words and found.unknown == found.words:
        raise MismatchError(
            f"{', '.join(map(str, texts))}: none of its words is in {lm}; spell both the same way (upper or lower"
            " case?)"
        )
    print(json.dumps(found.as_json(), indent=1) if as_json else describe_perplexity(found))


@g2p_verbs.command("train")
def train_g2p(
    lexicon: Annotated[Path, typer.Argument(help="Lexicon of Kaldi, MFA or CMUdict: `word phone phone ...`.")],
    out: Annotated[Path, typer.Argument(help="File to write.")],
    order: Annotated[int, typer.Option(help="Length of the longest n-grams of letters with phones.", min=1, max=6)] = 6,
) -> None:
    """Learn from a lexicon how words are pronounced.

    `speech3 g2p train lexicon.txt english.g2p`

    Words in upper and lower case are learnt alike; silences, noises and symbols such as `<unk>` are left out.
    """
    from speech3.language import g2p
    from speech3.runtime import check_output

    check_output(out, [lexicon], kind=("a file of speech3 g2p train", g2p.is_model))
    model = g2p.train(g2p.read_table(lexicon), str(lexicon), order)
    model.save(out)
    print(
        f"{out}: {counted(model.words, 'word')}, {counted(len(model.letters), 'letter')},"
        f" {counted(len(model.phones), 'phone')}, {counted(len(model.code_G), 'pair')} of both"
    )


@g2p_verbs.command()
def apply(
    model: Annotated[Path, typer.Argument(help="File from `speech3 g2p train`.")],
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORD...", help="Words, or files with one per line; - for standard input."),
    ],
    nbest: Annotated[
        int | None,
        typer.Option(metavar="N", help="Print up to N pronunciations of each word, with their probabilities.", min=1),
    ] = None,
    reverse: Annotated[
        bool,
        typer.Option("--reverse", help='Spell phones, given as "F OW1 N" or one pronunciation per line of a file.'),
    ] = False,
) -> None:
    """Print pronunciations of words as lines of a lexicon: `word phone phone ...`.

    `speech3 g2p apply english.g2p aardvark names.txt > more.txt`

    `speech3 g2p apply english.g2p colonel --nbest 3`

    `speech3 g2p apply english.g2p --reverse "F OW1 N"`

    With `--nbest` the probability of the pronunciation, given the word, follows the word; with `--reverse`, that of the
    spelling, given the phones. A word with a letter that the lexicon lacks gets no pronunciation, and is named.
    """
    from speech3.language import g2p
    from speech3.runtime import progress, say

    found = g2p.load(model)
    given = g2p.read_given(words, whole_lines=reverse)
    failed: dict[str, str] = {}
    for each in progress(given, len(given), "spellings" if reverse else "pronunciations"):
        try:
            best = found.spell(each.split(), nbest or 1) if reverse else found.pronounce(each, nbest or 1)
        except g2p.UnknownSymbolError as error:
            failed[each] = f"{error.symbol} is not a {'phone' if reverse else 'letter'} of the lexicon"
            continue
        if not best:
            failed[each] = "there is none"
        for symbols, prob in best:
            number = f" {max(prob, 1e-6):.6g}" if nbest else ""
            print(f"{''.join(symbols)}{number} {each}" if reverse else f"{each}{number} {' '.join(symbols)}")
    what = "spelling" if reverse else "pronunciation"
    for each, why in failed.items():
        say(f"no {what} of {each}: {why}")
    if failed and len(failed) == len(given):
        raise MissingError(f"{model}: no {what} of any of the {len(given):,} given")
