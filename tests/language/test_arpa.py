import gzip

import pytest

from speech3.errors import Speech3Error
from speech3.language.arpa import read_arpa, write_arpa
from speech3.language.kneser_ney import estimate_lm
from speech3.language.train_lm import perplexity

GOOD = """made by hand

\\data\\
ngram 1=4
ngram 2=3

\\1-grams:
-0.5\tA\t-0.2
-99\t<s>\t-0.3
-1.0 </s>
-0.7\tB

\\2-grams:
-0.1\t<s> A
-0.4\tA B
-0.2\tB </s>

\\end\\
"""


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
def test_read_back_what_was_written(tmp_path, name):
    lm = estimate_lm([line.split() for line in ("A B", "B", "A", "B A B", "A B A")], 3)
    write_arpa(lm, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    again = read_arpa(tmp_path / name)
    assert [list(ngrams) for ngrams in again.ngrams] == [list(ngrams) for ngrams in lm.ngrams]
    for ngrams, written in zip(again.ngrams, lm.ngrams, strict=True):
        for words, values in ngrams.items():
            assert values == pytest.approx(written[words], rel=1e-6, abs=1e-7)
    write_arpa(again, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_probabilities_by_hand(tmp_path):
    (tmp_path / "lm").write_text(GOOD)
    lm = read_arpa(tmp_path / "lm")
    assert lm.log10_prob(["<s>"], "A") == pytest.approx(-0.1)
    assert lm.log10_prob(["<s>", "A"], "A") == pytest.approx(-0.2 - 0.5)
    assert lm.log10_prob(["A", "B"], "B") == pytest.approx(-0.7)
    assert lm.log10_prob(["A"], "ZEBRA") == float("-inf")
    total = -0.1 - 0.4 - 0.2  # A B </s>
    assert perplexity(lm, [["A", "B"]]) == (pytest.approx(10 ** (-total / 3)), 0)
    assert perplexity(lm, [["A", "ZEBRA", "B"]])[1] == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "", r":18: .*ends where the \\data\\ header"),
        ("ngram 1=4\nngram 2=3\n", "", r":5: .*counts no n-grams"),
        ("ngram 1=4", "ngram 1=5", r":13: the header lists 5 1-grams, but there are 4"),
        ("ngram 1=4", "ngram 1=four", r":4: not a count: `ngram 1=four`; write"),
        ("ngram 2=3", "ngram 2=-3", r":5: not a count: `ngram 2=-3`"),
        ("ngram 1=4", "ngram 1=0", r":7: .*counts no n-grams"),
        ("ngram 2=3\n", "", r":7: not a 1-gram .* the header counts no 2-grams"),
        ("ngram 2=3", "ngram 2=3\nngram 3=0", r":19: expected `\\3-grams:`, found `\\end\\`; the header lists"),
        ("\\1-grams:\n-0.5\tA\t-0.2\n-99\t<s>\t-0.3\n-1.0 </s>\n-0.7\tB\n\n", "", r":7: expected `\\1-grams:`, found"),
        ("-0.4\tA B", "-0.4\tA C", r":15: `C` of `A C` is not a 1-gram; add it"),
        ("-0.4\tA B", "-0.1\t<s> A", r":15: `<s> A` occurs a second time; remove"),
        ("ngram 2=3", "ngram 3=3", r":5: expected the count of 2-grams"),
        ("\\2-grams:", "\\3-grams:", r":13: expected `\\2-grams:`"),
        ("-99\t<s>\t-0.3", "-99\t<S>\t-0.3", r":13: no <s> among the 1-grams.*estimate it"),
        ("-1.0 </s>", "-1.0 </S>", r":13: no </s> among the 1-grams"),
        ("-0.4\tA B", "-0.4\tA", r":15: not a 2-gram"),
        ("-0.4\tA B", "-0.4\tA B -0.1", r":15: not a 2-gram"),
        ("-0.4\tA B", "often\tA B", r":15: not a number"),
        ("-0.4\tA B", "0.4\tA B", r":15: impossible"),
        ("-0.4\tA B", "nan\tA B", r":15: impossible"),
        ("\\end\\", "\\3-grams:\n-1\tA B A\n\\end\\", r":18: expected `\\end\\`, found `\\3-grams:`; the header must"),
        ("\\end\\", "", r":18: the file ends where `\\end\\`"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, old, new, message):
    path = tmp_path / "bad.arpa"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(Speech3Error, match=rf"bad\.arpa{message}" if message[0] == ":" else message):
        read_arpa(path)


def test_unreadable_files(tmp_path):
    with pytest.raises(Speech3Error, match="no such language model"):
        read_arpa(tmp_path / "none.arpa")
    packed = gzip.compress(GOOD.encode() * 50)
    for content in (packed[:100], packed[:60] + b"\x00\xff" * 20 + packed[100:]):
        (tmp_path / "cut.arpa.gz").write_bytes(content)
        with pytest.raises(Speech3Error, match=r"cut\.arpa\.gz: cannot be read .*copy it again"):
            read_arpa(tmp_path / "cut.arpa.gz")
    (tmp_path / "latin.arpa").write_bytes(b"\\data\\\nngram 1=1\n\xe9\xff")
    with pytest.raises(Speech3Error, match=r"latin\.arpa:\d+: not UTF-8"):
        read_arpa(tmp_path / "latin.arpa")
