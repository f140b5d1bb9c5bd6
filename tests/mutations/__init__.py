from tests.mutations import core, faults, pipelines
from tests.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (*core.MUTATIONS, *pipelines.MUTATIONS, *faults.MUTATIONS)
