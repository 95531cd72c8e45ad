"""Language model, decoding graph and search."""

from typing import Literal

from pydantic import Field, model_validator

from speech3.config.base import Config


class LmConfig(Config):
    """The language model (exactly one of an n-gram from text, an ARPA file and a grammar) and its graph."""

    order: int | None = Field(
        None, ge=1, le=6, description="order of an interpolated Kneser-Ney n-gram, estimated on the text"
    )
    text: str | None = Field(
        None,
        description="file with one sentence per line; none: the transcripts of train. With arpa: the text that the"
        " ARPA model was estimated on, for a second model estimated here",
    )
    arpa: str | None = None
    grammar: Literal["one-word"] | None = Field(None, description="one-word: exactly one word of the lexicon")
    rescore: int | str | None = Field(
        None,
        description="a second n-gram model for the lattices: an ARPA file, or the order (1 to 6) of one that is "
        "estimated on the text without dev's sentences",
    )
    letters: int | None = Field(
        None,
        ge=0,
        le=6,
        description="order (2 to 6) of an n-gram of letters, which spells words that the language model lacks; 0: they"
        " cannot be recognised; none: 6 with lexicon=graphemes, else 0",
    )
    self_loop_scale: float = Field(
        0.1, ge=0, description="scale of the transitions' log probabilities in the graph, as in mkgraph.sh"
    )

    @model_validator(mode="after")
    def _one(self) -> "LmConfig":
        if sum(value is not None for value in (self.order, self.arpa, self.grammar)) != 1:
            raise ValueError("give exactly one of order, arpa, grammar; null removes one: lm.order=null lm.arpa=FILE")
        if self.letters == 1:
            raise ValueError("letters: an order from 2 to 6, or 0 for a closed vocabulary, not 1")
        if isinstance(self.rescore, int) and not 1 <= self.rescore <= 6:
            raise ValueError(f"rescore: an order from 1 to 6 or an ARPA file, not {self.rescore}")
        if self.rescore is not None and self.grammar:
            raise ValueError("rescore: the lattices of a grammar have no n-grams to be replaced; use order or arpa")
        return self


class DecodeConfig(Config):
    """The search, and the grid from which the acoustic scale and the word penalty are chosen on dev."""

    beam: float = Field(15.0, gt=0)
    max_active: int = Field(7000, ge=1)
    tuning_max_active: int = Field(2000, ge=1, description="max_active while scale and penalty are tuned")
    tuning_minutes: float = Field(
        10.0, gt=0, description="minutes of dev on which the grid is searched, drawn at random (always the same)"
    )
    acoustic_scales: tuple[float, ...] = Field(
        (0.03, 0.045, 0.06, 0.08, 0.1, 0.14, 0.2, 0.28), min_length=1, description="for GMMs and hybrid networks"
    )
    lfmmi_acoustic_scales: tuple[float, ...] = Field(
        (0.6, 0.8, 1.0, 1.25, 1.6), min_length=1, description="for networks trained with LF-MMI"
    )
    word_penalties: tuple[float, ...] = Field((-1.0, -0.5, 0.0, 0.5, 1.0), min_length=1)
    metric: Literal["WER", "CER", "PER"] = Field("WER", description="minimised by tuning; a recipe uses its own metric")
