"""Language model, graph, search."""

from typing import Literal

from pydantic import Field, model_validator

from speech3.config.base import Config


class LmConfig(Config):
    """The language model, exactly one of an n-gram from the training text, an ARPA file, a grammar; and its graph."""

    order: int | None = Field(None, ge=1, le=6, description="interpolated Kneser-Ney from the text")
    text: str | None = Field(
        None,
        description="file with one sentence a line; none: the transcripts of train. Beside arpa: what that was"
        " estimated on, for a second model of ours",
    )
    arpa: str | None = None
    grammar: Literal["one-word"] | None = Field(None, description="one-word: exactly one word of the lexicon")
    rescore: int | str | None = Field(
        None,
        description="a second n-gram model for the lattices: an ARPA file, or the order (1 to 6) of one of ours, of the"
        " text without dev's sentences",
    )
    self_loop_scale: float = Field(
        0.1, ge=0, description="of the transitions' log probabilities in the graph, as mkgraph.sh has it"
    )

    @model_validator(mode="after")
    def _one(self) -> "LmConfig":
        if sum(value is not None for value in (self.order, self.arpa, self.grammar)) != 1:
            raise ValueError(
                "give exactly one of order, arpa, grammar; null takes one back: lm.order=null lm.arpa=FILE"
            )
        if isinstance(self.rescore, int) and not 1 <= self.rescore <= 6:
            raise ValueError(f"rescore: an order from 1 to 6 or an ARPA file, not {self.rescore}")
        if self.rescore is not None and self.grammar:
            raise ValueError("rescore: lattices of a grammar have no n-grams to take the place of; use order or arpa")
        return self


class DecodeConfig(Config):
    """Search, and the grid from which the acoustic scale and the word penalty are picked on dev."""

    beam: float = Field(15.0, gt=0)
    max_active: int = Field(7000, ge=1)
    tuning_max_active: int = Field(2000, ge=1, description="in place of max_active while scale and penalty are tuned")
    tuning_minutes: float = Field(
        10.0, gt=0, description="of dev, drawn at random (the same ones each time), on which the grid is searched"
    )
    acoustic_scales: tuple[float, ...] = Field(
        (0.03, 0.045, 0.06, 0.08, 0.1, 0.14, 0.2, 0.28), min_length=1, description="GMMs, posteriors over priors"
    )
    lfmmi_acoustic_scales: tuple[float, ...] = Field(
        (0.6, 0.8, 1.0, 1.25, 1.6), min_length=1, description="networks trained with LF-MMI"
    )
    word_penalties: tuple[float, ...] = Field((-1.0, -0.5, 0.0, 0.5, 1.0), min_length=1)
    metric: Literal["WER", "CER"] = Field("WER", description="that tuning makes lowest; in a recipe its own metric")
