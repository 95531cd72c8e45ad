"""`speech3 lm`: n-gram language models."""

from pathlib import Path
from typing import Annotated

import typer

from speech3.errors import SettingError

verbs = typer.Typer(no_args_is_help=True, help="Train, prune, interpolate and measure n-gram language models.")

Model = Annotated[Path, typer.Argument(metavar="LM", help="ARPA file, compressed or not.")]


@verbs.command()
def train(
    texts: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEXT...", help="One sentence per line, or Kaldi's text; may be compressed; - for standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="LM", help="ARPA file to write; gzipped if it ends in .gz.")],
    order: Annotated[int, typer.Option(help="Length of the longest n-grams, 1 to 6.")] = 3,
    vocabulary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Word list or lexicon; other words count as `<unk>`.")
    ] = None,
    counts: Annotated[
        bool, typer.Option("--counts", help="The files hold n-grams and their counts, as written by ngram-count.")
    ] = False,
    minimum_counts: Annotated[
        str, typer.Option(metavar="N,N,...", help="How often n-grams of order 1, 2, ... must occur to be kept.")
    ] = "1",
) -> None:
    """Estimate a model with interpolated modified Kneser-Ney smoothing.

    `speech3 lm train text.gz more.txt --order 3 --out lm.arpa.gz`

    `zcat corpus.gz | speech3 lm train - --order 4 --minimum-counts 1,1,2 --vocabulary lexicon.txt --out lm.arpa.gz`

    Texts may be of any size: besides the vocabulary at most 2 GB are held in memory; the rest is sorted in files under
    TMPDIR.
    """
    from speech3.language import train_lm as training

    try:
        minimums = [int(field) for field in minimum_counts.split(",")]
    except ValueError as error:
        raise SettingError(f"--minimum-counts {minimum_counts}: expected whole numbers, such as 1,1,2") from error
    found = training.train(texts, order, out, vocabulary, minimums, counts)
    print(f"{out}: {', '.join(f'{size:,} {length}-grams' for length, size in enumerate(found.sizes, 1))}")
    if vocabulary:
        share = 100 * found.unknown / found.words if found.words else 0.0
        print(f"{found.unknown:,} of {found.words:,} words of the text ({share:.2f} %) are not in {vocabulary}: <unk>")


@verbs.command()
def prune(
    lm: Model,
    out: Annotated[Path, typer.Argument(help="ARPA file to write; gzipped if it ends in .gz.")],
    threshold: Annotated[
        float, typer.Option(metavar="X", help="Relative increase of the perplexity below which an n-gram is removed.")
    ],
) -> None:
    """Remove n-grams that hardly affect the perplexity, by relative entropy (Stolcke 1998).

    `speech3 lm prune lm.arpa.gz small.arpa.gz --threshold 1e-7`

    All back-off weights are recomputed; threshold 0 does only that, and repairs a model with wrong back-off weights.
    """
    from speech3.language import check_sums, read_arpa, write_arpa
    from speech3.language import prune as pruned

    if not threshold >= 0:
        raise SettingError(f"--threshold {threshold:g}: must be >= 0, such as 1e-7")
    model = read_arpa(lm)
    check_sums(model, mending=True)
    smaller = pruned(model, threshold)
    write_arpa(smaller, out)
    sizes = [len(smaller.rows(length).prob_R) if length <= smaller.order else 0 for length in range(1, model.order + 1)]
    parts = (f"{size:,} of {len(model.rows(length).prob_R):,} {length}-grams" for length, size in enumerate(sizes, 1))
    print(f"{out}: {', '.join(parts)}")


@verbs.command()
def interpolate(
    lms: Annotated[list[Path], typer.Argument(metavar="LM...", help="ARPA files.")],
    out: Annotated[Path, typer.Option(metavar="LM", help="ARPA file to write; gzipped if it ends in .gz.")],
    tune: Annotated[Path | None, typer.Option(metavar="TEXT", help="Held-out text to choose the weights on.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="W,W,...", help="The weights, which sum to 1.")] = None,
) -> None:
    """Interpolate models linearly, with the given weights or those that predict a text best.

    `speech3 lm interpolate ours.arpa.gz large.arpa.gz --tune dev.txt --out mixed.arpa.gz`

    `speech3 lm interpolate ours.arpa.gz large.arpa.gz --weights 0.3,0.7 --out mixed.arpa.gz`

    The text for `--tune` should come from neither the training nor the test data, and resemble what will be recognised.
    """
    from speech3.language import check_sums, measure_text, read_arpa, read_tokens, write_arpa
    from speech3.language import mixtures as mixing

    if (tune is None) == (weights is None):
        raise SettingError("use either --tune TEXT or --weights 0.3,0.7")
    models = [read_arpa(path) for path in lms]
    mixing.check_models(models)
    for model in models:
        check_sums(model)
    if weights is not None:
        try:
            values = [float(field) for field in weights.split(",")]
        except ValueError as error:
            raise SettingError(f"--weights {weights}: expected numbers, such as 0.3,0.7") from error
    else:
        assert tune
        vocabulary = mixing.joint_vocabulary(models)
        text = read_tokens([tune], mixing.tuning_numbers(vocabulary))
        values = mixing.best_weights(models, text, vocabulary, str(tune))
    mixture = mixing.interpolate(models, values, str(out))
    write_arpa(mixture, out)
    for model, value in zip([*models, mixture], [*values, 1.0], strict=True):
        found = f", perplexity {measure_text(model, [tune]).known:.1f}" if tune and tune.is_file() else ""
        print(f"{model.source}: weight {value:.4f}{found}" if model is not mixture else f"{out}: the mixture{found}")


@verbs.command()
def perplexity(
    lm: Model,
    texts: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEXT...", help="One sentence per line, or Kaldi's text; may be compressed; - for standard input."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure how well a model predicts a text: perplexity, unknown words, and the orders of the n-grams found.

    `speech3 lm perplexity lm.arpa.gz test.txt`
    """
    import json

    from speech3.language import describe_perplexity, measure_text, read_checked

    found = measure_text(read_checked(lm), texts)
    print(json.dumps(found.as_json(), indent=1) if as_json else describe_perplexity(found))
