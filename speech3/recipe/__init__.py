"""From a recipe to a word error rate: stages that run in order, and run again only when their dependencies change.

This package may import every other, except `speech3.cli`.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.recipe import evaluation
    from speech3.recipe.aligner import Aligner, read_for
    from speech3.recipe.aligner_files import FORMATS, Format
    from speech3.recipe.aligner_output import AlignRequest, align_source
    from speech3.recipe.experiment import LFMMI, open_experiment, recipes
    from speech3.recipe.plan import (
        CHOOSE,
        DATA,
        SELF_STAGE,
        chose_nothing,
        cost_remarks,
        expected_costs,
        hours_of_speech,
        planned_steps,
        totals_table,
    )
    from speech3.recipe.selftrain import found_nothing
    from speech3.recipe.steps import describe_plan, is_done, make_plan, run_plan
else:
    __getattr__ = door(__file__)

__all__ = [
    "CHOOSE",
    "DATA",
    "FORMATS",
    "LFMMI",
    "SELF_STAGE",
    "AlignRequest",
    "Aligner",
    "Format",
    "align_source",
    "chose_nothing",
    "cost_remarks",
    "describe_plan",
    "evaluation",
    "expected_costs",
    "found_nothing",
    "hours_of_speech",
    "is_done",
    "make_plan",
    "open_experiment",
    "planned_steps",
    "read_for",
    "recipes",
    "run_plan",
    "totals_table",
]
