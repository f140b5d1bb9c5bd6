"""One-line breaks of pipelines, data parallelism and the sharded optimizer."""

from tests.mutations.mutation import Mutation

PIPELINE = "tests/common/pipeline"
MATRIX = "tests/composition/test_matrix.py"
PARALLEL = "tests/common/parallel/test_gradients.py"
GRADIENTS = "common/parallel/gradients.py"
EXECUTE = "common/pipeline/execute.py"
TESTS = (f"{PIPELINE}/test_execute.py", PARALLEL, MATRIX)


def mutation(name: str, what: str, file: str, old: str, new: str, *first: str) -> Mutation:
    return Mutation(name, what, file, old, new, (*first, *TESTS))


MUTATIONS = (
    mutation("tied-gradients-not-summed", "each end of the pipeline keeps its own gradient of the tied embedding",
             GRADIENTS, "if facts.copied or facts.copy_of:", "if facts.copied and facts.copy_of:"),
    mutation("tied-counted-on-both-ends", "a tied embedding counts twice in the global norm",
             "common/parameters.py", "if self.copy_of is not None:", "if False:"),
    mutation("tied-copy-starts-otherwise", "the last stage's copy of the embedding is drawn under another name",
             "common/parameters.py", "yield p.facts.copy_of or name, p, p.facts", "yield name, p, p.facts"),
    mutation("shared-not-summed-when-sharded", "the sharded optimizer splits tied and norm gradients before they are summed",
             GRADIENTS, "for b in self.late:\n            for", "for b in (b for b in self.late if not b.sharded):\n            for"),
    mutation("gradients-reduced-twice", "a bucket that was reduced during backward is reduced again after it",
             GRADIENTS, "for b in self.buckets:\n            if not b.started:\n                b.start()",
             "for b in self.buckets:\n            b.finish()\n            b.start()"),
    mutation("late-buckets-skipped", "buckets of shared parameters are neither cleared nor reduced nor updated",
             GRADIENTS, "for b in chunk), *self.late]", "for b in chunk)]"),
    mutation("bucket-reduced-before-it-is-full", "a bucket goes out when its first gradient arrives",
             GRADIENTS, "            if b.waiting:\n                return", "            if False:\n                return"),
    mutation("reduced-at-every-micro-batch", "buckets go out in the first backward pass, not in a chunk's last",
             EXECUTE, "if final and self.gradients and not split:", "if self.gradients and not split:"),
    mutation("every-rank-keeps-the-first-shard", "all data ranks update the same part of each bucket",
             GRADIENTS, "self.first = each * group.index if self.sharded else 0", "self.first = 0"),
    mutation("tied-copies-cut-differently", "both ends of the pipeline cut the tied table at other elements over data ranks",
             GRADIENTS, "bool(x[2].copied or x[2].copy_of)) == (expert, both)", "False) == (expert, both)"),
    mutation("sent-in-full", "gradients travel between data ranks as they are kept, whatever was asked for",
             GRADIENTS, "self.flat.to(self.reduce_in)", "self.flat"),
    mutation("values-not-gathered", "data ranks keep old values of what others have updated",
             "common/training/optimizer.py", "self.gradients.gather_values()", "pass"),
    mutation("runs-saved-at-the-start", "a checkpoint places every run of a sharded state at a parameter's start",
             "common/training/optimizer.py", "Slice(x, self.pieces[n].start)", "Slice(x, 0)",
             "tests/common/checkpoint/test_reshard.py"),
    mutation("norm-of-one-stage", "each stage clips by its own norm", GRADIENTS,
             'self.layout.group("tp", "cp", "dp", "pp")).sqrt()', 'self.layout.group("tp", "cp", "dp")).sqrt()'),
    mutation("norm-counts-data-ranks", "every data rank adds its replicated gradients to the norm", GRADIENTS,
             "if b.sharded or b.group.index == 0", "if True"),
    mutation("loss-of-one-stage", "ranks without the last stage report no loss", "common/training/step.py",
             'return all_reduce(mine, layout.group("dp", "cp", "pp"))', 'return all_reduce(mine, layout.group("dp", "cp"))'),
    mutation("chunk-reads-other-data", "every chunk but the first reads the first micro-batch", EXECUTE,
             "self.pipeline.stages[action.chunk], self.records[action.micro_batch]",
             "self.pipeline.stages[action.chunk], self.records[action.micro_batch * (action.chunk == 0)]"),
    mutation("chunks-backward-in-forward-order", "the interleaved backward takes chunks from the first", "common/pipeline/schedules.py",
             'pack("backward", v - 1 - chunk, micro_batch)', 'pack("backward", chunk, micro_batch)', PIPELINE),
    mutation("no-warm-up", "1F1B starts its backwards at once, so stages wait for each other", "common/pipeline/schedules.py",
             "min(p - r - 1, m)) for r in range(p)))", "0) for r in range(p)))", PIPELINE),
    mutation("slices-of-one-rank", "every tensor rank sends the first slice of a stage's output", "common/pipeline/wire.py",
             "flat.chunk(self.tp.size)[self.tp.index]", "flat.chunk(self.tp.size)[0]"),
    mutation("sent-whole", "scatter/gather sends the whole tensor from every rank", "common/pipeline/wire.py",
             "return self.active and shape.replicated", "return False and shape.replicated"),
    mutation("outputs-held", "a stage's outputs stay until their backward", EXECUTE,
             "roots = [get_gradient_edge(carry[n]) for n in names]", "roots = [carry[n] for n in names]"),
    mutation("input-gradient-dropped", "stages send back zeros", EXECUTE, "if alive.inputs[n].grad is None else",
             "if alive.inputs[n] is not None else"),
    mutation("one-weight-gradient-lost", "a split backward forgets the first of its weight gradients", EXECUTE,
             "(action.chunk, action.micro_batch)).later:", "(action.chunk, action.micro_batch)).later[1:]:"),
    mutation("kept-micro-batches-recomputed", "the schedule's flag to keep a micro-batch is not read", EXECUTE,
             "if action.flags & KEEP else", "if action.flags & KEEP > KEEP else", f"{PIPELINE}/test_windows.py"),
    mutation("layers-numbered-by-stage", "dropout of each stage draws the masks of the first", "common/models/language_model.py",
             "Layer(config.layers.units[i], config, context, i, policy.at(i))",
             "Layer(config.layers.units[i], config, context, i - first, policy.at(i))"),
    mutation("a-layer-lost", "an uneven cut drops the layers that do not divide", "common/pipeline/stages.py",
             "at := at + each + (stage in larger)", "at := at + each", "tests/common/pipeline/test_stages.py"),
)
