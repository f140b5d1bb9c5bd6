"""Parameters: table 1, table 2, equation 2 and the captions, from the models themselves.

Every model is made whole at its published size, without storage; each logical tensor counts once, the tied embedding
too.
"""

import re
from collections.abc import Iterator

from common.claims import Ask, Contradiction, Quantity, Relative, Result, Rounding, produces
from common.claims.published import Facts
from common.claims.quantities import exact
from papers.interleaved_pipelining.sizes import FACTS, GIGA, TABLE_1, TABLE_2, value, variables

KEY = "params_billion"
TEXT = {"text-train-time-gpt3": "table2-ptdp-175b-1536", "text-train-time-1t": "table1-1008b",
        "text-headline": "table1-1008b"}
"""What the text says, and the row of the model meant."""


def billions(source: str) -> float:
    from papers.interleaved_pipelining.traces import parameters, recipe

    return parameters(recipe(source).model) / GIGA


def same_model(row: str) -> str:
    """The PTD-P row of table 2 with the model of any row of table 2."""
    return "table2-ptdp-175b-384" if "175b" in row else "table2-ptdp-530b-560"


@produces(
    *(exact(row, KEY, Rounding(), text="parameters", headline=row == "table1-1008b") for row in TABLE_1),
    *(exact("eq-params", row.removeprefix("table1-"), Relative(1e-5),
            lambda facts, row=row: value("eq-params", **variables(row)) / GIGA, unit="billion", text=name)
      for row, name in TABLE_1.items()),
    *(exact(row, KEY, Rounding(), text="parameters") for row in TABLE_2),
    *(exact(text, KEY, Rounding(), text="parameters") for text in TEXT),
    minutes=0.05,
)
def parameter_counts(ask: Ask) -> Iterator[Result]:
    for row in TABLE_1:
        found = billions(row)
        yield Result(f"{row}/{KEY}", found, detail=f"{found:.4f} before rounding")
        yield Result(f"eq-params/{row.removeprefix('table1-')}", found,
                     detail="2h more than the equation: the final norm, which it leaves out")
    for row in TABLE_2:
        yield Result(f"{row}/{KEY}", billions(same_model(row)))
    for text, row in TEXT.items():
        yield Result(f"{text}/{KEY}", billions(row))


CAPTIONS = {
    "figure7-microbatch": lambda recipes: recipes.figure_7(1),
    "figure12-default": lambda recipes: recipes.figure_12(12, chunks=1),
    "figure13-b32": lambda recipes: recipes.figure_13(2, 32),
    "figure14-b32": lambda recipes: recipes.figure_14(2, 32),
    "figure15-b32": lambda recipes: recipes.figure_15(2, 32),
    "figure16-b128": lambda recipes: recipes.figure_16(1, 128),
    "figure17-recompute": lambda recipes: recipes.figure_17(1),
    "figure18-unoptimized": lambda recipes: recipes.figure_18(12, scatter_gather=False),
}


def _named(source: str) -> float:
    """The size by which the figure calls its model, in billions."""
    what = FACTS[source].what
    if "one billion" in what:
        return 1
    number = re.search(r"([\d.]+)B", what).group(1)
    return float(number) if "." in number else int(number)


def _caption(source: str) -> Quantity:
    return exact(source, "model_billion", Rounding(2), lambda facts: _named(source), unit="billion",
                 text="parameters of the model, as it is called")


def _text_of_5_4_1(facts: Facts) -> int:
    return int(re.search(r"text of 5\.4\.1 says (\d+)B", facts["figure13-b32"].note).group(1))


WEAK, ENDS = "text-weak-scaling-models", {1: "pp1", 8: "pp8"}


@produces(
    *map(_caption, CAPTIONS),
    exact("figure13-b32", "model_billion_text", Rounding(), _text_of_5_4_1, unit="billion",
          text="parameters of the model, by section 5.4.1"),
    *(exact(WEAK, f"params_billion_{end}", Rounding(), text=f"parameters, {p} stage{'s' * (p > 1)}")
      for p, end in ENDS.items()),
    *(exact(WEAK, f"layers_{end}", Rounding(), text=f"layers, {p} stage{'s' * (p > 1)}")
      for p, end in ENDS.items()),
    minutes=0.03,
)
def models_of_figures(ask: Ask) -> Iterator[Result]:
    from papers.interleaved_pipelining import recipes
    from papers.interleaved_pipelining.traces import parameters

    for source, make in CAPTIONS.items():
        yield Result(f"{source}/model_billion", parameters(make(recipes).model) / GIGA)
    found = parameters(recipes.figure_13(2, 32).model) / GIGA
    yield Result("figure13-b32/model_billion_text", found,
                 contradiction=Contradiction("Figure 13's caption", _named("figure13-b32"),
                                             "161 is 12lh², without embeddings"))
    for p, end in ENDS.items():
        model = recipes.figure_11(p, 8).model
        printed = value("eq-params", l=model.depth, h=model.hidden, V=model.vocab, s=model.sequence) / GIGA
        yield Result(f"{WEAK}/params_billion_{end}", parameters(model) / GIGA,
                     contradiction=Contradiction("Equation 2", round(printed, 1),
                                                 "the text's number is 12lh², without embeddings"))
        yield Result(f"{WEAK}/layers_{end}", model.depth)


PRODUCERS = (parameter_counts, models_of_figures)
