from tests.mutations import core, pipelines
from tests.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (*core.MUTATIONS, *pipelines.MUTATIONS)
