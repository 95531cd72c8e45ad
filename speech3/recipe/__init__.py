"""From a recipe to a word error rate: stages that run in order, and run again only when their dependencies change.

This package may import every other, except `speech3.cli`.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.recipe.aligner import (
        Aligner as Aligner,
        TextRules as TextRules,
        in_vocabulary as in_vocabulary,
        read_for as read_for,
    )
    from speech3.recipe.aligner_files import FORMATS as FORMATS
    from speech3.recipe.aligner_output import AlignRequest as AlignRequest, align_source as align_source
    from speech3.recipe.experiment import open_experiment as open_experiment
    from speech3.recipe.plan import run_recipe as run_recipe
else:
    __getattr__ = door(__file__)
