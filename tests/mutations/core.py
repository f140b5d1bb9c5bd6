"""One-line breaks of the core, each a trouble that people have had, and the tests that should notice."""

from dataclasses import dataclass

REGRESSIONS = "tests/regressions"
PARITY = "tests/composition"
KERNELS = "tests/common/kernels"
TRAINING = "tests/common/training"


@dataclass(frozen=True)
class Mutation:
    """`old` stands once in `file` and becomes `new`; `tests` are run in this order until one fails."""

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = (REGRESSIONS, PARITY)


MUTATIONS = (
    Mutation("norm-gradients-not-summed", "under sequence parallelism each tensor rank keeps its own norm gradient",
             "common/layers/context.py", 'return ("tp",) if self.scattered else ()', "return ()"),
    Mutation("copied-groups-not-summed", "ranks that hold copies of a key-value group keep their own gradient",
             "common/parallel/gradients.py", "elif facts.copies(self.layout) > 1:",
             "elif facts.copies(self.layout) > 1 and facts.partial:"),
    Mutation("replicated-counted-per-rank", "norms and biases count once per tensor rank in the global norm",
             "common/parameters.py", "return layout.index(axis) % copies == 0", "return True"),
    Mutation("sharded-counted-on-one-rank", "sharded parameters count on tensor rank 0 alone in the global norm",
             "common/parameters.py", "return layout.index(axis) % copies == 0", "return layout.index(axis) == 0"),
    Mutation("row-reduction-dropped", "partial outputs of a row layer are not summed",
             "common/layers/linear.py", "start_all_reduce(part, group, owned=True).wait()", "part"),
    Mutation("input-gradient-of-one-rank", "the input gradient of a column layer is that of tensor rank 0 alone",
             "common/layers/linear.py", "start_all_reduce(d_whole, ctx.group, owned=True)",
             "start_all_reduce(d_whole * (ctx.group.index == 0), ctx.group)"),
    Mutation("weight-gradient-overwritten", "a micro-batch's weight gradient replaces the ones before it",
             "common/layers/linear.py", "main_OI.addmm_(grad_TO.t(), x_TI)",
             "main_OI.addmm_(grad_TO.t(), x_TI, beta=0)"),
    Mutation("mean-of-means", "each data rank divides by its own tokens",
             "common/training/step.py", 'return all_reduce(mine, layout.group("dp", "cp"))',
             'return mine * layout.size("dp", "cp")'),
    Mutation("micro-batch-means", "each micro-batch divides by its own tokens",
             "common/training/step.py", "(language.sum * factor.to(language.sum.dtype)).backward()",
             "(language.sum / language.count.clamp(min=1) / len(records)).backward()"),
    Mutation("shard-masks-alike", "the dropout mask of every sequence shard is that of the first",
             "common/models/language_model.py",
             "first = self.context.tp.index * y.shape[0] if self.context.scattered else 0", "first = 0"),
    Mutation("head-masks-alike", "every tensor rank drops as if it had the first heads",
             "common/layers/attention.py", "first_head = self.context.tp.index * q.shape[2]", "first_head = 0"),
    Mutation("mask-not-redrawn", "random bytes come from a running generator, not from what they are for",
             "common/random.py", "return _generators[device].manual_seed(seed)", "return _generators[device]",
             (f"{KERNELS}/test_dropout.py", PARITY)),
    Mutation("padding-in-the-loss", "padded vocabulary columns take probability",
             "common/kernels/cross_entropy.py", "x[..., real:] = -torch.inf", "x[..., real:] = 0",
             (f"{KERNELS}/test_cross_entropy.py", PARITY)),
    Mutation("embedding-rows-leak", "a tensor rank embeds tokens that it does not hold with its row 0",
             "common/layers/embedding.py", " * mine[..., None]", ""),
    Mutation("causal-mask-shifted", "each token sees the next",
             "common/kernels/attention.py", ".tril_()[None, None]", ".tril_(1)[None, None]",
             (f"{KERNELS}/test_attention.py",)),
    Mutation("documents-ignored", "attention crosses document borders in the unfused form",
             "common/kernels/attention.py", "if documents_BS is None:", "if True:", (f"{KERNELS}/test_attention.py",)),
    Mutation("rotary-backward-forward", "the gradient of the rotation turns the wrong way",
             "common/kernels/rotary.py", "_turn(grad, cos, -sin)", "_turn(grad, cos, sin)",
             (f"{KERNELS}/test_rotary.py",)),
    Mutation("clip-without-norm-of-all", "the global norm leaves the other tensor ranks out",
             "common/parallel/gradients.py", 'return all_reduce(squares, self.layout.group("tp", "pp")).sqrt()',
             "return squares.sqrt()"),
    Mutation("main-weights-not-published", "bf16 parameters keep their first values",
             "common/training/optimizer.py", "            if (main := self.main[name]) is not p:\n                p.copy_(main)",
             "            pass", (TRAINING,)),
    Mutation("decay-on-everything", "weight decay acts on norms and biases",
             "common/training/optimizer.py", "if f.decay}", "}", (TRAINING,)),
    Mutation("moments-not-restored", "a resumed run starts Adam's moments anew",
             "common/training/loop.py", "store.load(folder, training.optimizer.state(), facts, training.layout)",
             'store.load(folder, {"parameters": training.optimizer.state()["parameters"]}, facts, training.layout)',
             (TRAINING,)),
    Mutation("updates-not-restored", "a resumed run counts Adam's bias correction from zero",
             "common/training/loop.py", 'training.optimizer.steps = manifest["updates"]', "pass", (TRAINING,)),
    Mutation("checksum-not-read", "a damaged checkpoint is loaded",
             "common/checkpoint/store.py",
             'if path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:',
             'if path.stat().st_size != expected["bytes"]:', (TRAINING,)),
    Mutation("dropped-output-kept", "recomputing norms and activations frees nothing",
             "common/recompute/policy.py", "        if found is None:\n", "        if True:\n", ("tests/common/trace",)),
)
