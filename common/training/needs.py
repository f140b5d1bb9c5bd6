"""What a recipe takes at least, counted without building anything: enough to refuse what cannot run on this machine."""

from common.device import available_memory
from common.models.config import LanguageModelConfig
from common.models.pattern import LETTERS
from common.precision.policy import precision
from common.training.recipe import Recipe

ADAM = 2  # moments of each main weight
RECORD = 8 + 8 + 8 + 1  # bytes of a token: itself, its label, its position, whether it counts


def weights(config: LanguageModelConfig) -> int:
    """Elements of a model's matrices; norms and biases, a thousandth of them, are left out."""
    attention = 2 * config.hidden * config.dim * (config.heads + config.groups)
    mlp = config.hidden * config.inner * (3 if config.gated else 2)
    letters = "".join(config.layers.units)
    layers = sum(letters.count(letter) * {"attention": attention, "mlp": mlp}[kind] for letter, kind in LETTERS.items())
    table = config.sequence * config.hidden if config.positions == "learned" else 0
    return layers + table + config.vocab * config.hidden * (1 if config.tied else 2)


def state_bytes(recipe: Recipe) -> int:
    """Weights, gradients and the optimizer's state of all ranks together."""
    types = precision(recipe.execution.precision)
    copies = recipe.grid.dp
    main = types.main.itemsize
    own = 0 if types.parameters == types.main else main
    shared = 1 if recipe.execution.sharded_optimizer else copies
    return weights(recipe.model) * (copies * (types.parameters.itemsize + main) + shared * (own + ADAM * main))


def step_bytes(recipe: Recipe) -> int:
    """The records of a step and, of one micro-batch a data rank, a layer's input and the logits; all ranks together."""
    model, grid, config = recipe.model, recipe.grid, recipe.training
    records = config.batch * model.sequence * RECORD * grid.tp * grid.pp
    width = (model.hidden + model.vocab) * precision(recipe.execution.precision).parameters.itemsize
    return records + grid.dp * config.micro_batch * model.sequence * width


def check_memory(recipe: Recipe) -> None:
    """Raises ValueError where all ranks of the recipe, on this machine, need more memory than is free."""
    state, step, free = state_bytes(recipe), step_bytes(recipe), available_memory()
    if state + step <= free:
        return
    model, config = recipe.model, recipe.training
    cause = (f"model.hidden={model.hidden}, vocab={model.vocab}, {model.depth} layers" if state > step else
             f"training.batch={config.batch}, micro_batch={config.micro_batch}, model.sequence={model.sequence}")
    raise ValueError(f"the ranks need at least {(state + step) / 2**30:,.1f} GiB of this machine's memory, {state / 2**30:,.1f} "
                     f"for weights, gradients and optimizer and {step / 2**30:,.1f} for a step's data, and "
                     f"{free / 2**30:,.1f} GiB are free: lower {cause}, or use more machines")
